"""The page at ``/``: static files of this package, the same on every server.

They hold nothing of the server's own, so they need no key, which a browser could not send; whatever
the page shows it asks the API for, with the key.
"""

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "cache-control": "no-cache",  # kept, and asked for again with its ETag
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class PageFile:
    """One file, ready to be sent.

    Attributes:
        body: its bytes.
        media_type: what they are.
        etag: changes with them.
    """

    body: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """The files by their paths: ``/`` and those below ``/page/``."""
    found: dict[str, PageFile] = {}
    for file in files("astrai_api").joinpath("web").iterdir():
        path = "/" if file.name == "index.html" else f"/page/{file.name}"
        body = file.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        found[path] = PageFile(body, _MEDIA_TYPES[file.name.rpartition(".")[2]], etag)
    return found


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def page_file(request: Request) -> Response:
    """A file of the page, or 304 for whoever has it."""
    file = page_files().get(request.scope["path"])
    if file is None:
        raise HTTPException(404)
    headers = {**_HEADERS, "etag": file.etag}
    known = request.headers.get("if-none-match", "").replace("W/", "").replace(" ", "")
    if file.etag in known.split(","):
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
