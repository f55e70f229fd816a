"""API keys: who may call, and whose cached prefixes a caller shares."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from astrai_api.errors import ApiError

HEALTH_PATHS = frozenset({"/health", "/ready"})


def tenant_salt(scope: Scope) -> str | None:
    """The digest of the caller's key when there are several keys: tenants share no prefixes."""
    salt: str | None = scope.get("state", {}).get("tenant_salt")
    return salt


class AuthMiddleware:
    """Refuses requests without a known key; health checks and CORS preflights need none.

    Args:
        app: the guarded app.
        keys: the accepted keys, at least one.
        public: other paths that need none.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], public: Iterable[str] = ()) -> None:
        self._app = app
        self._public = HEALTH_PATHS.union(public)
        self._digests = [hashlib.sha256(key.encode()).hexdigest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer 401."""
        if scope["type"] == "http" and not self._is_public(scope):
            digest = self._authenticate(Headers(scope=scope))
            if len(self._digests) > 1:
                scope.setdefault("state", {})["tenant_salt"] = digest
        await self._app(scope, receive, send)

    def _is_public(self, scope: Scope) -> bool:
        return scope["path"] in self._public or scope["method"] == "OPTIONS"

    def _authenticate(self, headers: Headers) -> str:
        offered = _offered_keys(headers)
        if not offered:
            raise _unauthorized(
                "This server needs an API key: send it as `Authorization: Bearer KEY` "
                "or `x-api-key: KEY`."
            )
        for key in offered:
            digest = hashlib.sha256(key.encode("latin-1")).hexdigest()
            # Every key is compared, in constant time: timing tells nothing about them.
            if sum(hmac.compare_digest(digest, known) for known in self._digests):
                return digest
        raise _unauthorized("The API key is not one of this server's.")


def _offered_keys(headers: Headers) -> list[str]:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, headers.get("x-api-key", "").strip()) if key]


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})
