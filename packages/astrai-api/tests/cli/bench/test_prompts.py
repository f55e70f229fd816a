from itertools import islice

import pytest

from astrai_api.cli.bench.prompts import PromptFile, SyntheticPrompts, as_chat, as_completion
from astrai_api.cli.exits import CommandError


def texts(prompts, count=4):
    return [body["prompt"].split() for body in islice(prompts, count)]


def test_made_up_prompts_have_the_length_asked_for_and_differ():
    found = texts(SyntheticPrompts(40))
    assert [len(words) for words in found] == [40] * 4
    assert len({tuple(words[:8]) for words in found}) == 4


def test_equal_seeds_give_equal_prompts():
    assert texts(SyntheticPrompts(9, seed=1)) == texts(SyntheticPrompts(9, seed=1))
    assert texts(SyntheticPrompts(9, seed=1)) != texts(SyntheticPrompts(9, seed=2))


def test_prompts_of_a_group_begin_alike():
    first, second, third, fourth = texts(SyntheticPrompts(30, 20, num_groups=2))
    assert first[:20] == third[:20] != second[:20] == fourth[:20]
    assert first[20:] != third[20:]
    assert len(first) == 30


def test_what_is_shared_is_part_of_the_prompt():
    with pytest.raises(CommandError, match="is a part of --prompt-tokens"):
        SyntheticPrompts(10, 11)


def test_a_file_may_hold_texts_json_chats_and_batch_lines(tmp_path):
    path = tmp_path / "prompts"
    message = '[{"role": "user", "content": "c"}]'
    path.write_text(
        f'a text\n\n"quoted"\n{{"prompt": "b", "max_tokens": 3}}\n{{"messages": {message}}}\n'
        f'{{"custom_id": "x", "body": {{"model": "m", "messages": {message}}}}}\n'
    )
    messages = [{"role": "user", "content": "c"}]
    assert list(islice(PromptFile(path), 6)) == [
        {"prompt": "a text"},
        {"prompt": '"quoted"'},
        {"prompt": "b", "max_tokens": 3},
        {"messages": messages},
        {"messages": messages},
        {"prompt": "a text"},
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"\n", "has no prompts"), (b"{}", "neither prompt nor messages"), (b"\xff", "as text")],
)
def test_a_file_without_prompts_is_refused(tmp_path, content, told):
    path = tmp_path / "prompts"
    path.write_bytes(content)
    with pytest.raises(CommandError, match=told):
        iter(PromptFile(path))


def test_both_endpoints():
    message = {"role": "user", "content": "a"}
    assert as_chat({"prompt": "a", "n": 1}) == {"messages": [message], "n": 1}
    assert as_chat({"messages": []}) == {"messages": []}
    assert as_completion({"prompt": "a"}) == {"prompt": "a"}
    with pytest.raises(CommandError, match="leave out --endpoint completions"):
        as_completion({"messages": []})
