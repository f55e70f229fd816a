"""The model names that clients may use."""

from dataclasses import dataclass

from astrai_api.client import EngineClient
from astrai_api.errors import ApiError

DEFAULT_MODEL = "astrai"
"""The name that always works, and the one meant when a request names none."""

ANY_MODEL = "*"


@dataclass(frozen=True)
class ServedModels:
    """Names by which the one model of the engine is served.

    Attributes:
        configured: the operator's names; empty stands for the engine's own. With ``*`` among
            them, every name is accepted.
    """

    configured: tuple[str, ...] = ()

    def names(self, engine: EngineClient) -> list[str]:
        """The names to list, without duplicates, ``astrai`` last."""
        own = [name for name in self.configured if name != ANY_MODEL] or [engine.name]
        return list(dict.fromkeys([*own, DEFAULT_MODEL]))

    def check(self, name: str, engine: EngineClient) -> None:
        """Refuse a name that is not served.

        Raises:
            ApiError: 404, with the names that are.
        """
        if ANY_MODEL not in self.configured:
            self.check_listed(name, engine)

    def check_listed(self, name: str, engine: EngineClient) -> None:
        """Refuse a name that is not listed, even where every name is accepted.

        Raises:
            ApiError: 404, with the names that are.
        """
        names = self.names(engine)
        if name not in names:
            listed = ", ".join(f"`{served}`" for served in names)
            raise ApiError(
                404,
                f"The model `{name}` does not exist. This server has: {listed}.",
                code="model_not_found",
                param="model",
            )
