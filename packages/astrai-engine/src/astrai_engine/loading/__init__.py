"""From a model's name to a model in memory.

``resolve_source`` is light; ``load_model`` brings torch, so it is imported on first use.
"""

from typing import TYPE_CHECKING, Any

from astrai_engine.loading.source import ModelSource, resolve_source

if TYPE_CHECKING:
    from astrai_engine.loading.loader import GenerationDefaults, LoadedModel, load_model

__all__ = ["GenerationDefaults", "LoadedModel", "ModelSource", "load_model", "resolve_source"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from astrai_engine.loading import loader  # noqa: PLC0415 (torch only when needed)

    return getattr(loader, name)
