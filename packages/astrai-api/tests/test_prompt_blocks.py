"""Digests of the beginning of a prompt: equal exactly as far as prompts are."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astrai_api.replicas.prompt_blocks import BLOCK_BYTES, MAX_BLOCKS, prompt_blocks

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def blocks(path, fields, **keywords):
    return prompt_blocks(path, json.dumps(fields).encode(), **keywords)


def common(first, second):
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


@settings(max_examples=25)
@given(st.text("ab", max_size=400), st.text("ab", max_size=400), st.text("ab", max_size=400))
def test_as_many_are_equal_as_whole_blocks_of_the_texts(beginning, one, other):
    first, second = beginning + one, beginning + other
    shared = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )
    found = blocks(TEXT, {"prompt": first}), blocks(TEXT, {"prompt": second})
    assert [len(each) for each in found] == [len(first) // BLOCK_BYTES, len(second) // BLOCK_BYTES]
    assert common(*found) == shared // BLOCK_BYTES


def test_a_conversation_that_goes_on_begins_as_it_did():
    messages = [{"role": "system", "content": "x" * 500}, {"role": "user", "content": "y" * 300}]
    longer = [*messages, {"role": "assistant", "content": "z"}, {"role": "user", "content": "?"}]
    first, second = blocks(CHAT, {"messages": messages}), blocks(CHAT, {"messages": longer})
    assert len(first) >= 6
    assert second[: len(first)] == first


def test_what_is_no_part_of_the_prompt_makes_no_difference():
    messages = [{"role": "user", "content": "x" * 400}]
    reordered = [{"content": "x" * 400, "role": "user"}]
    plain = blocks(CHAT, {"messages": messages})
    assert plain
    assert blocks(CHAT, {"model": "m", "stream": True, "messages": reordered, "seed": 3}) == plain


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, "tools"),
        ("/v1/messages", "system"),
        ("/v1/messages", "tools"),
        ("/v1/responses", "instructions"),
    ],
)
def test_what_templates_write_before_the_messages_counts_from_the_first_block(path, field):
    fields = {"messages": [{"role": "user", "content": "x" * 400}]}
    with_a, with_b = ({**fields, field: letter * 200} for letter in "ab")
    assert common(blocks(path, with_a), blocks(path, with_b)) == 0
    assert blocks(path, with_a) == blocks(path, with_a)


@pytest.mark.parametrize("keywords", [{"tenant": "key"}, {"salt": "s"}])
def test_prompts_that_share_no_cache_share_no_block(keywords):
    salt = {"cache_salt": keywords.pop("salt")} if "salt" in keywords else {}
    fields = {"prompt": "x" * 1000}
    assert common(blocks(TEXT, fields), blocks(TEXT, {**fields, **salt}, **keywords)) == 0


def test_token_ids_and_inputs_of_responses_are_prompts_too():
    assert len(blocks(TEXT, {"prompt": list(range(100, 300))})) >= 4
    assert len(blocks("/v1/responses", {"input": "x" * 256})) == 2


def test_of_a_long_prompt_only_the_beginning_is_looked_at():
    assert len(blocks(TEXT, {"prompt": "x" * 10**6})) == MAX_BLOCKS


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"[]", b"3", b"[" * 100_000, b'{"messages": 3}', b'{"prompt": "short"}'],
)
def test_what_has_no_prompt_has_no_blocks(body):
    assert prompt_blocks(CHAT, body) == ()


def test_surrogates_do_no_harm():
    assert len(prompt_blocks(TEXT, b'{"prompt": "' + rb"\ud800" * 200 + b'"}')) >= 1


def test_other_paths_have_no_prompt():
    assert prompt_blocks("/tokenize", json.dumps({"prompt": "x" * 1000}).encode()) == ()
