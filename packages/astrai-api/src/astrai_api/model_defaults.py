"""What the model's makers want where a request leaves it open."""

from typing import Any

from astrai_api.client import EngineClient
from astrai_api.wire import WireModel


def model_defaults(request: WireModel, engine: EngineClient) -> dict[str, Any]:
    """The sampling parameters that the model names and the request does not.

    They stand before the protocol's own defaults. A null in the request names nothing.

    Args:
        request: as the client sent it.
        engine: knows the model.

    Returns:
        Keywords of ``GenerationRequest``.
    """
    defaults = engine.info.sampling_defaults
    return {name: value for name, value in defaults.items() if name not in request.model_fields_set}
