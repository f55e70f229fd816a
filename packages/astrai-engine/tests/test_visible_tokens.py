"""Special tokens whose text a request wants to read."""

import pytest

from astrai_engine import EngineConfig, GenerationRequest, InferenceEngine
from astrai_engine.events import Finished, TokenDelta
from astrai_engine.grammar import Grammar
from astrai_engine.testing import PieceTokenizer
from astrai_engine.visible_tokens import VisibleTokens

USER, ASSISTANT, END = "<|user|>", "<|assistant|>", "<|end|>"


@pytest.fixture(scope="module")
def engine(tiny_checkpoint):
    with InferenceEngine(config=EngineConfig(model=str(tiny_checkpoint), page_size=4)) as engine:
        yield engine


def forced(engine, token_id, **parameters):
    """The events of a request that generates a token four times."""
    return list(
        engine.submit(
            GenerationRequest(
                prompt="x",
                logit_bias={token_id: 1000.0},
                temperature=0.0,
                max_tokens=4,
                logprobs=True,
                **parameters,
            )
        )
    )


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TokenDelta))


def test_only_the_named_ones_get_a_text():
    shown = VisibleTokens(PieceTokenizer([b"a", b"", b""]), {"[X]": 1})
    assert [shown.token_bytes(i) for i in range(3)] == [b"a", b"[X]", b""]
    assert shown.token_text(0) == "a"


def test_a_visible_token_is_text_and_has_an_entry(engine):
    user = engine.tokenizer.added_token_id(USER)
    assert text_of(forced(engine, user)) == ""
    events = forced(engine, user, visible_special_tokens=[USER, "no such token"])
    assert text_of(events) == 4 * USER
    entries = [e for event in events if isinstance(event, TokenDelta) for e in event.logprobs]
    assert [entry.token_bytes for entry in entries] == [USER.encode()] * 4
    assert text_of(forced(engine, user, visible_special_tokens=[ASSISTANT])) == ""


def test_a_visible_token_can_be_part_of_a_stop_string(engine):
    user = engine.tokenizer.added_token_id(USER)
    events = forced(engine, user, visible_special_tokens=[USER], stop=[f"|>{USER}"])
    assert text_of(events) == "<|user"
    assert events[-1].stop == f"|>{USER}"


def test_what_ends_the_text_is_never_part_of_it(engine):
    end, user = map(engine.tokenizer.added_token_id, (END, USER))
    both = [END, USER]
    assert text_of(forced(engine, end, visible_special_tokens=both, ignore_eos=True)) == ""
    assert text_of(forced(engine, user, visible_special_tokens=both, stop_token_ids=[user])) == ""


def run(engine, grammar, **parameters):
    handle = engine.submit(
        GenerationRequest(grammar=grammar, max_tokens=60, temperature=0.0, **parameters)
    )
    events = list(handle)
    ids = [i for event in events if isinstance(event, TokenDelta) for i in event.token_ids]
    return text_of(events), ids


def test_a_tag_in_a_grammar_is_the_token_that_shows_it(engine):
    grammar = Grammar.lark(f'start: tag "a"\ntag: "{USER}"')
    user = engine.tokenizer.added_token_id(USER)
    text, ids = run(engine, grammar, prompt="x", visible_special_tokens=[USER])
    assert text == f"{USER}a"
    assert ids[0] == user


def test_handles_tell_how_the_prompt_ends(engine):
    chat = [{"role": "user", "content": f"{USER}hi"}]
    asked = [
        (GenerationRequest(messages=chat, max_tokens=1), f"{USER}{USER}hi{ASSISTANT}"),
        (GenerationRequest(prompt="a" * 100, max_tokens=1), "a" * 64),
        (GenerationRequest(prompt_token_ids=[65], max_tokens=1), ""),
    ]
    for request, end in asked:
        handle = engine.submit(request)
        assert handle.prompt_end == end
        assert isinstance(list(handle)[-1], Finished)


def test_the_template_of_chats_with_tools_is_told(engine):
    assert engine.info.chat_template.startswith("{% for m in messages %}<|{{ m.role }}|>")
