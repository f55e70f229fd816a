"""A model hub on a local socket, for tests of what downloads: set ``HF_ENDPOINT`` to its address.

It speaks as much of the Hugging Face hub's protocol as ``huggingface-hub`` needs to download.
"""

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

_API = re.compile(r"/api/models/(?P<repo>[^/]+/[^/?]+)(/(revision|tree)/(?P<revision>[^/?]+))?")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


class FakeHub:
    """A running hub; a context manager that stops it.

    Args:
        repositories: ``org/name`` to the files of its one revision, by path.
        token: what repositories whose name contains ``private`` ask for.

    Attributes:
        requests: method and path of every request so far, a range appended after a space.
        lost: paths of files that are listed but can't be fetched.
        breaks_after: bytes after which the next download of a file ends too early; None for none.
    """

    def __init__(
        self, repositories: Mapping[str, Mapping[str, bytes]], *, token: str = "secret"
    ) -> None:
        self.repositories = {name: dict(files) for name, files in repositories.items()}
        self.token = token
        self.requests: list[str] = []
        self.lost: set[str] = set()
        self.breaks_after: int | None = None
        hub = self

        class Handler(_Handler):
            def __init__(self, *args: Any) -> None:
                self.hub = hub
                super().__init__(*args)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Its address, for ``HF_ENDPOINT``."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def commit(self, repo: str) -> str:
        """The commit of a repository's revision: 40 hexadecimal digits that follow its files."""
        digest = hashlib.sha1(usedforsecurity=False)
        for file, content in sorted(self.repositories[repo].items()):
            digest.update(file.encode() + content)
        return digest.hexdigest()

    def downloads(self) -> list[str]:
        """The files fetched so far, in the order of their requests."""
        return [
            r.split("/", 5)[5] for r in self.requests if r.startswith("GET") and "/resolve/" in r
        ]

    def __enter__(self) -> "FakeHub":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are kept, not printed."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        asked = self.headers.get("Range")
        self.hub.requests.append(f"{self.command} {self.path}" + (f" {asked}" if asked else ""))
        found = _API.match(self.path) or _FILE.fullmatch(self.path)
        repo = found["repo"] if found else ""
        if found is None or repo not in self.hub.repositories:
            self._refuse(404, "RepoNotFound", "Repository not found")
        elif "private" in repo and self.headers.get("authorization") != f"Bearer {self.hub.token}":
            self._refuse(401, "GatedRepo", "Access to this model is restricted")
        elif found["revision"] not in (None, "main", self.hub.commit(repo)):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {found['revision']}")
        elif "file" in found.groupdict():
            self._send_file(repo, found["file"])
        else:
            self._describe(repo, is_tree="/tree/" in self.path)

    def _describe(self, repo: str, *, is_tree: bool) -> None:
        files = self.hub.repositories[repo]
        described: Any = [
            {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
            for name, content in files.items()
        ]
        if not is_tree:
            siblings = [{"rfilename": entry["path"], "size": entry["size"]} for entry in described]
            described = {"id": repo, "sha": self.hub.commit(repo), "siblings": siblings}
        self._send(200, json.dumps(described).encode(), {"Content-Type": "application/json"})

    def _send_file(self, repo: str, name: str) -> None:
        content = self.hub.repositories[repo].get(name)
        if content is None or name in self.hub.lost:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        headers = {"X-Repo-Commit": self.hub.commit(repo), "ETag": f'"{_etag(content)}"'}
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        if asked:
            start = int(asked[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content = content[start:]
        self._send(206 if asked else 200, content, headers)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        limit = self.hub.breaks_after
        if limit is not None and "/resolve/" in self.path and len(content) > limit:
            self.hub.breaks_after = None
            content = content[:limit]
            self.close_connection = True
        self.wfile.write(content)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message})


def _etag(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
