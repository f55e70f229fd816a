"""Continuous-batching inference for decoder-only language models.

Names are loaded on first use: importing this package, or any of its torch-free modules, does not
import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astrai_engine.config import EngineConfig as EngineConfig
    from astrai_engine.config import EngineInfo as EngineInfo
    from astrai_engine.engine import InferenceEngine as InferenceEngine
    from astrai_engine.events import Event as Event
    from astrai_engine.events import Failed as Failed
    from astrai_engine.events import Finished as Finished
    from astrai_engine.events import FinishReason as FinishReason
    from astrai_engine.events import TokenDelta as TokenDelta
    from astrai_engine.events import Usage as Usage
    from astrai_engine.grammar import Grammar as Grammar
    from astrai_engine.loading.model_store import StoredModel as StoredModel
    from astrai_engine.loading.model_store import list_models as list_models
    from astrai_engine.loading.model_store import pull_model as pull_model
    from astrai_engine.loading.model_store import remove_model as remove_model
    from astrai_engine.loop import InferenceScheduler as InferenceScheduler
    from astrai_engine.request import GenerationRequest as GenerationRequest
    from astrai_engine.result import GenerateResult as GenerateResult
    from astrai_engine.sampling import SamplingPipeline as SamplingPipeline
    from astrai_engine.sampling import sample as sample
    from astrai_engine.workspace import InferenceWorkspace as InferenceWorkspace

_HOMES = {
    "EngineConfig": "config",
    "EngineInfo": "config",
    "Event": "events",
    "Failed": "events",
    "FinishReason": "events",
    "Finished": "events",
    "GenerateResult": "result",
    "GenerationRequest": "request",
    "Grammar": "grammar",
    "InferenceEngine": "engine",
    "InferenceScheduler": "loop",
    "InferenceWorkspace": "workspace",
    "SamplingPipeline": "sampling",
    "StoredModel": "loading.model_store",
    "TokenDelta": "events",
    "Usage": "events",
    "list_models": "loading.model_store",
    "pull_model": "loading.model_store",
    "remove_model": "loading.model_store",
    "sample": "sampling",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
