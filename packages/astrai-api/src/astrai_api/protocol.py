"""The path of a request through a protocol: wire request, generation, wire response.

:class:`ProtocolHandler` is the same for all protocols; :class:`ResponseBuilder` is what differs.
"""

import inspect
from typing import Any, Generic, TypeVar

from fastapi import APIRouter
from starlette.responses import Response

from astrai_api.builder import RequestContext, ResponseBuilder
from astrai_api.client import EngineClient
from astrai_api.documentation import write_responses
from astrai_api.generation import CollectedGeneration, StreamedGeneration
from astrai_api.merged import submit_all
from astrai_api.served_models import DEFAULT_MODEL
from astrai_api.serving import Serving
from astrai_api.strict_json import StrictJSONRoute

__all__ = ["ProtocolHandler", "RequestContext", "ResponseBuilder", "protocol_router"]

RequestT = TypeVar("RequestT")


class ProtocolHandler(Generic[RequestT]):
    """Carries one wire request through the engine and back.

    Args:
        request: the validated wire request.
        engine: where it runs.
        builder: its protocol, a fresh instance.
    """

    def __init__(
        self, request: RequestT, engine: EngineClient, builder: ResponseBuilder[RequestT]
    ) -> None:
        self._request = request
        self._engine = engine
        self._builder = builder

    @property
    def _model(self) -> str:
        """The name that the client used for the model."""
        return getattr(self._request, "model", None) or DEFAULT_MODEL

    async def handle(self) -> Response:
        """Submit the request; the response returned waits for its events when it is sent.

        Raises:
            ApiError: the protocol refuses the request.
            AstraiError: the engine refuses it.
        """
        generations = await self._builder.plan(self._request, self._engine)
        self._builder.context.planned(self._model, generations)
        handle = await submit_all(self._engine, generations)
        if generations[0].stream:
            return StreamedGeneration(handle, self._builder)
        return CollectedGeneration(handle, self._builder)


def protocol_router(
    path: str, request_type: type[RequestT], builder_type: type[ResponseBuilder[RequestT]]
) -> APIRouter:
    """A router that serves one protocol: what registering it takes.

    Args:
        path: where clients post to.
        request_type: the pydantic model of the body.
        builder_type: the protocol.
    """
    router = APIRouter(route_class=StrictJSONRoute)

    async def generate(body: Any, serving: Serving) -> Response:
        return await ProtocolHandler(body, serving.engine, builder_type(serving.context)).handle()

    generate.__annotations__["body"] = request_type  # FastAPI reads the model from here
    router.post(
        path,
        name=path,
        summary=inspect.getdoc(builder_type),
        response_class=Response,
        responses=write_responses(path, builder_type.answer, generates=True),
    )(generate)
    return router
