"""The page's files as they are served; what they do is in tests/e2e/browser."""

import re
from importlib.resources import files
from urllib.parse import urljoin

import pytest

from astrai_api.page import page_files

WEB = files("astrai_api").joinpath("web")
PATHS = sorted(page_files())
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def test_every_file_has_a_path():
    names = {"index.html" if path == "/" else path.removeprefix("/page/") for path in PATHS}
    assert names == {file.name for file in WEB.iterdir()}
    assert len(names) > 15


@pytest.mark.parametrize("path", PATHS)
async def test_a_file(client, path):
    response = await client.get(path)
    assert response.status_code == 200
    expected = "text/html; charset=utf-8" if path == "/" else TYPES[path[path.rindex(".") :]]
    assert response.headers["content-type"] == expected
    assert "default-src 'self'" in response.headers["content-security-policy"]
    assert "unsafe" not in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["cache-control"] == "no-cache"
    name = "index.html" if path == "/" else path.removeprefix("/page/")
    assert response.content == WEB.joinpath(name).read_bytes()


async def test_whoever_has_a_file_is_told_so(client):
    etag = (await client.get("/page/main.js")).headers["etag"]
    assert re.fullmatch(r'"[0-9a-f]{32}"', etag)
    assert etag != (await client.get("/")).headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}'):
        response = await client.get("/page/main.js", headers={"if-none-match": known})
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == etag
    response = await client.get("/page/main.js", headers={"if-none-match": '"other"'})
    assert response.status_code == 200


async def test_its_head(client):
    assert (await client.head("/")).headers["content-type"] == "text/html; charset=utf-8"


async def test_it_needs_no_key_and_what_it_shows_does(connect):
    client = connect(api_key=("k",))
    for path in PATHS:
        assert (await client.get(path)).status_code == 200
    for path in ("/page/nothing.js", "/page", "/engine/live", "/v1/models"):
        assert (await client.get(path)).status_code == 401


async def test_it_can_be_turned_off(connect):
    open_server = connect(page=False)
    for path in PATHS:
        response = await open_server.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"
    assert (await connect(page=False, api_key=("k",)).get("/")).status_code == 401


async def test_there_is_nothing_else(client):
    for path in ("/page/nothing.js", "/page/../page.py", "/page/index.html"):
        assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("path", PATHS)
def test_it_asks_for_nothing_elsewhere_and_for_nothing_that_is_missing(path):
    text = page_files()[path].body.decode()
    for url in re.findall(r"https?://[^\s\"'`)]*\w", text):
        assert url == "http://www.w3.org/2000/svg", url
    found = re.findall(r"""(?:from|import\(|src=|href=|url\()\s*["']([^"']+)["']""", text)
    for reference in found:
        assert urljoin(path, reference) in PATHS, reference


@pytest.mark.parametrize("path", [path for path in PATHS if path.endswith(("/", ".js"))])
def test_it_makes_nothing_of_html_and_has_no_inline_code(path):
    text = page_files()[path].body.decode()
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    assert not re.search(forbidden, text)
    if path == "/":
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", text)


@pytest.mark.parametrize("path", PATHS)
def test_its_modules_are_short(path):
    assert page_files()[path].body.count(b"\n") <= 300
