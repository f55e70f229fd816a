"""The application of Ray Serve: a front, and the replicas behind it."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.serve import Application

from astrai_api.ray_serve.front import Front
from astrai_api.ray_serve.replica import EngineReplica
from astrai_api.settings import Settings, load_settings

_DRAIN_MARGIN = 10.0
"""Seconds that stopping takes beyond those which running requests get."""

_FRONT_REQUESTS = 2**16
"""Requests that a front may forward at once; how many run is up to the replicas."""


class ReplicaArguments(BaseModel):
    """Arguments of the application; all other names are settings of the server.

    Attributes:
        replicas: how many, or the fewest where ``max_replicas`` is given; 0 is allowed there.
        max_replicas: most replicas; None keeps the number fixed.
        target_load: choices, running and waiting, that a replica should have: with more another one
            is started. None is ``max_batch_size``.
        cpus: that Ray sets aside for a replica, and threads of the CPU kernels unless
            ``num_threads`` says.
        gpus: that Ray gives a replica.
        prefix_routing: send prompts that begin alike to the same replica.
        fronts: processes that forward requests. Each has its own memory of who has what.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    replicas: int = Field(default=1, ge=0)
    max_replicas: int | None = Field(default=None, ge=1)
    target_load: float | None = Field(default=None, gt=0)
    cpus: float = Field(default=1, ge=0)
    gpus: float = Field(default=0, ge=0)
    prefix_routing: bool = True
    fronts: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _some_replicas(self) -> Self:
        if self.max_replicas is None and self.replicas == 0:
            raise ValueError("replicas may be 0 only with max_replicas")
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ValueError("max_replicas must not be below replicas")
        return self


def build_app(arguments: ReplicaArguments) -> Application:
    """The application, for ``serve.run`` or a Serve config file.

    Settings that are not among the arguments come from this process's environment; replicas get
    them as they are here.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    settings = load_settings(options=arguments.model_extra)
    options = settings.model_dump(include=settings.model_fields_set)
    replicas = serve.deployment(EngineReplica).options(
        **_number_of_replicas(arguments, settings),
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        max_ongoing_requests=settings.max_batch_size + settings.max_queue,
        max_queued_requests=settings.max_queue,
        max_constructor_retry_count=3,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=settings.shutdown_timeout + _DRAIN_MARGIN,
        request_router_config={
            "request_router_class": "astrai_api.ray_serve.request_router.PrefixRequestRouter",
            "request_router_kwargs": {"prefix_routing": arguments.prefix_routing},
        },
    )
    front = serve.deployment(Front).options(
        num_replicas=arguments.fronts,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_FRONT_REQUESTS,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=settings.shutdown_timeout + _DRAIN_MARGIN,
    )
    threads = max(1, int(arguments.cpus))
    return front.bind(replicas.bind(options, threads), options)


def _number_of_replicas(arguments: ReplicaArguments, settings: Settings) -> dict[str, Any]:
    """Options of the deployment of replicas."""
    if arguments.max_replicas is None:
        return {"num_replicas": arguments.replicas}
    return {
        "autoscaling_config": {
            "min_replicas": arguments.replicas,
            "max_replicas": arguments.max_replicas,
            "target_ongoing_requests": arguments.target_load or settings.max_batch_size,
            "policy": {"policy_function": "astrai_api.replicas.autoscaling:by_queue_length"},
        }
    }
