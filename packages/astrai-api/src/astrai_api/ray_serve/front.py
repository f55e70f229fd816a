"""The front as a deployment of Ray Serve, and its way to the replicas."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_api.errors import ApiError
from astrai_api.logs import configure_logging
from astrai_api.ray_serve.known_replicas import replica_names
from astrai_api.replicas.forwarded import ForwardedRequest
from astrai_api.replicas.front import ReplicaLostError, front_app
from astrai_api.settings import load_settings


class ServeReplicas:
    """The replicas behind a handle.

    Args:
        handle: to the deployment of replicas.
    """

    def __init__(self, handle: DeploymentHandle) -> None:
        self._app_name = handle.app_name
        self._answer = handle.options(method_name="answer", stream=True)

    def names(self) -> Sequence[str]:
        """Those that can take requests now."""
        return replica_names(self._app_name)

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """What a replica sends, as soon as it does; closing it hangs up.

        Raises:
            ReplicaLostError: the replica is gone.
            ApiError: as many requests as may wait do already, or there will be no replica.
        """
        response = self._answer.remote(request)
        try:
            async for messages in response:
                yield messages
        except RayActorError as error:
            raise ReplicaLostError(str(error)) from error
        except BackPressureError as error:
            raise ApiError(
                429, "All replicas are full.", code="queue_full", retry_after=1
            ) from error
        except DeploymentUnavailableError as error:
            raise ApiError(503, error.message, code="engine_unavailable", retry_after=1) from error
        finally:
            response.cancel()


@serve.ingress()
class Front:
    """What Serve's proxies send HTTP requests to.

    Args:
        replicas: handle to the deployment of replicas.
        options: settings, by name.
    """

    def __init__(self, replicas: DeploymentHandle, options: Mapping[str, Any]) -> None:
        self._settings = load_settings(options=options)
        configure_logging(self._settings.log_format)
        self._replicas = ServeReplicas(replicas)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """The application; Serve asks for it once."""
        return _without_request_id(front_app(self._replicas, self._settings))


def _without_request_id(app: ASGIApp) -> ASGIApp:
    """The application without its ``x-request-id``: Serve's proxies add the same one themselves."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_rest(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await app(scope, receive, send_rest)

    return called
