"""API keys: which requests need one, in which header, and what a key separates."""

import pytest

from astrai_api.testing import FakeEngine

BODY = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer k"}, 200),
        ({"authorization": "bearer k"}, 200),
        ({"authorization": "BEARER  k "}, 200),
        ({"x-api-key": "k"}, 200),
        ({"authorization": "Bearer k", "x-api-key": "k"}, 200),
        ({"authorization": "Bearer placeholder", "x-api-key": "k"}, 200),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": "Basic k"}, 401),
        ({"authorization": "k"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": b"\xff\xfe"}, 401),
    ],
)
async def test_header_forms(connect, headers, status):
    """B143."""
    client = connect(api_key=("k",))
    for path in ("/v1/chat/completions", "/v1/messages"):
        response = await client.post(path, json=BODY, headers=headers)
        assert response.status_code == status
        if status == 401:
            assert response.json()["error"]["type"] == "authentication_error"
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_public_paths(connect, path):
    """B143."""
    assert (await connect(api_key=("k",)).get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/stats", "/v1/models", "/nothing", "/openapi.json", "//stats"])
async def test_everything_else_needs_a_key(connect, path):
    """B143."""
    assert (await connect(api_key=("k",)).get(f"http://test{path}")).status_code == 401


async def test_any_of_several_keys(connect):
    client = connect(api_key=("one", "two"))
    for key in ("one", "two"):
        response = await client.get("/v1/models", headers={"x-api-key": key})
        assert response.status_code == 200


async def _salts(client, engine, *keys):
    for key in keys:
        for path in ("/v1/chat/completions", "/v1/messages"):
            await client.post(path, json=BODY, headers={"x-api-key": key})
    return [request.cache_salt for request in engine.requests]


async def test_tenants_share_no_prefixes(connect):
    engine = FakeEngine()
    salts = await _salts(connect(engine, api_key=("one", "two")), engine, "one", "two")
    assert salts[0] == salts[1] != salts[2] == salts[3]
    assert None not in salts
    assert "one" not in salts[0]


async def test_one_key_is_one_tenant(connect):
    engine = FakeEngine()
    assert await _salts(connect(engine, api_key=("one",)), engine, "one") == [None, None]


async def test_own_salt_wins_and_an_empty_one_is_none(connect):
    engine = FakeEngine()
    client = connect(engine, api_key=("one", "two"))
    for salt in ("mine", ""):
        body = {**BODY, "cache_salt": salt}
        await client.post("/v1/chat/completions", json=body, headers={"x-api-key": "one"})
    assert engine.requests[0].cache_salt == "mine"
    assert len(engine.requests[1].cache_salt) == 64
