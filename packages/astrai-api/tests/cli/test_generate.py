import json

import pytest

from astrai_api.testing import FakeEngine, FakeInfo, Reply
from astrai_engine.errors import GenerationError

REASONING = FakeInfo(chat_template="{{ messages }}<think></think>")


def test_a_prompt_is_answered_here(astrai, local_engine):
    engine = FakeEngine.scripted(Reply("Paris."))
    local_engine(engine)
    result = astrai(
        "generate", "What?", "--system", "Be brief.", "--temperature", 0.5, "--max-tokens", 9
    )
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Paris.\n", "")
    (request,) = engine.requests
    assert [m["content"] for m in request.messages] == ["Be brief.", "What?"]
    assert (request.temperature, request.max_tokens) == (0.5, 9)


def test_a_server_answers_a_piped_prompt(astrai, serve):
    engine = FakeEngine.scripted(Reply("Paris."))
    result = astrai("generate", "--url", serve(engine), stdin="What?\n")
    assert result.stdout == "Paris.\n"
    assert engine.requests[0].messages[0]["content"] == "What?\n"


def test_raw_text_is_continued(astrai, local_engine):
    engine = FakeEngine.scripted(Reply(" Paris."))
    local_engine(engine)
    result = astrai("generate", "The capital is", "--raw", "--seed", 3)
    assert result.stdout == " Paris.\n"
    assert (engine.requests[0].prompt, engine.requests[0].seed) == ("The capital is", 3)


def test_json_is_the_whole_response(astrai, local_engine):
    local_engine(FakeEngine.scripted(Reply("Paris.")))
    body = json.loads(astrai("generate", "What?", "--json").stdout)
    assert body["object"] == "chat.completion"
    assert body["choices"][0]["message"]["content"] == "Paris."


def test_reasoning_is_not_part_of_the_answer(astrai, local_engine):
    local_engine(FakeEngine.scripted(Reply("<think>Hm.</think>Paris."), info=REASONING))
    assert astrai("generate", "What?").stdout.strip() == "Paris."


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--raw", "--system", "x", "hi"], "leave --system out"),
        (["  "], "There is nothing to answer"),
        ([], "There is nothing to answer"),
        (["hi", "--url", "nonsense://"], "is not the address of a server"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(astrai, arguments, told):
    result = astrai("generate", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stderr.startswith("astrai: ")


def test_a_refusal_is_one_sentence(astrai, local_engine):
    local_engine(FakeEngine())
    for extra in ([], ["--json"]):
        result = astrai("generate", "hi", "--temperature", 7, *extra)
        assert result.exit_code == 1
        assert "temperature" in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1


def test_a_failure_midway_ends_with_its_sentence(astrai, local_engine):
    local_engine(FakeEngine.scripted(Reply("Par", GenerationError("It broke."))))
    result = astrai("generate", "hi")
    assert (result.exit_code, result.stdout) == (3, "Par")
    assert "It broke." in result.stderr


def test_nobody_there(astrai, closed_port):
    result = astrai("generate", "hi", "--url", closed_port)
    assert result.exit_code == 3
    assert "No server answers at" in result.stderr


def test_no_such_model(astrai):
    result = astrai("generate", "hi", "--model", "/nowhere")
    assert result.exit_code == 4
    assert "'/nowhere' was not found" in result.stderr


def test_ctrl_c_stops_the_engine(astrai, local_engine):
    class Interrupted(FakeEngine):
        async def submit_async(self, request):
            raise KeyboardInterrupt

    engine = Interrupted()
    local_engine(engine)
    assert astrai("generate", "hi").exit_code == 130
    assert engine.draining
