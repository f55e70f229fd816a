import json

import pytest

from astrai_api.cli.chat import converse
from astrai_api.cli.exits import CommandError
from astrai_api.testing import FakeEngine, Reply
from astrai_engine.errors import GenerationError


def contents(request):
    return [message["content"] for message in request.messages]


def test_the_conversation_is_remembered(astrai, local_engine):
    engine = FakeEngine.scripted(Reply("Hello Ann."), Reply("Ann."))
    local_engine(engine)
    result = astrai("chat", "--system", "Be brief.", stdin="I am Ann.\nWho\\\nam I?\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Hello Ann.\nAnn.\n", "")
    assert contents(engine.requests[1]) == ["Be brief.", "I am Ann.", "Hello Ann.", "Who\nam I?"]


def test_commands(astrai, local_engine, tmp_path):
    engine = FakeEngine.scripted(*(Reply(f"answer {i}") for i in range(5)))
    local_engine(engine)
    path = tmp_path / "chat.json"
    lines = ["one", "/retry", "two", "/undo", f"/save {path}", "/set temperature 0.5", "/new"]
    lines += ["three", "/system Be kind.", f"/load {path}", "four", "/show", "", "/exit", "five"]
    result = astrai("chat", stdin="\n".join(lines) + "\n")
    assert result.exit_code == 0, result.stderr
    asked = [contents(request) for request in engine.requests]
    assert asked == [
        ["one"],
        ["one"],
        ["one", "answer 1", "two"],
        ["three"],
        ["one", "answer 1", "four"],
    ]
    assert [request.temperature for request in engine.requests[3:]] == [0.5, 1.0]
    assert json.loads(path.read_text())["turns"][1] == {"role": "assistant", "content": "answer 1"}
    for told in ("Forgotten: two", "temperature 0.5", "is now: Be kind.", "Loaded 2 messages."):
        assert told in result.stderr
    assert "user: four\nassistant: answer 4" in result.stderr


def test_a_saved_conversation_goes_on(astrai, local_engine, tmp_path):
    path = tmp_path / "chat.json"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path.write_text(json.dumps({"system": "s", "parameters": {"seed": 3}, "turns": turns}))
    engine = FakeEngine()
    local_engine(engine)
    astrai("chat", "--load", path, "--temperature", 0, stdin="c\n")
    (request,) = engine.requests
    assert contents(request) == ["s", "a", "b", "c"]
    assert (request.seed, request.temperature) == (3, 0)


def test_help_lists_every_command(astrai, local_engine):
    local_engine(FakeEngine())
    result = astrai("chat", stdin="/help\n")
    for name in ("/retry", "/system [TEXT]", "/set NAME VALUE", "/save FILE", "/exit"):
        assert name in result.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/nonsense", "/nonsense is no command; /help lists them."),
        ("/set", "Write /set NAME VALUE."),
        ("/set speed 3", "'speed' can't be set"),
        ("/set seed 0.5", "seed is a whole number or 'default', not '0.5'."),
        ("/undo", "Nothing has been asked yet."),
        ("/save /nowhere/x", "/nowhere/x can't be written"),
        ("/load /nowhere/x", "/nowhere/x can't be read"),
        (f"/load {__file__}", "holds no conversation"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_ends_a_piped_chat(astrai, local_engine, line, told):
    local_engine(FakeEngine())
    result = astrai("chat", stdin=f"{line}\nmore\n")
    assert result.exit_code == 1
    assert told in result.stderr


def test_a_parameter_can_be_left_to_the_server_again(astrai, local_engine):
    engine = FakeEngine()
    local_engine(engine)
    astrai("chat", "--seed", 3, stdin="/set seed default\nhi\n")
    assert engine.requests[0].seed is None


class Session:
    """Handles lines as the script says, and keeps what is said about it."""

    def __init__(self, *outcomes):
        self.outcomes, self.said, self.handled = list(outcomes), [], []
        self.remarks = self

    def say(self, text, style=""):
        self.said.append(text)

    def handle(self, line):
        self.handled.append(line)
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome


def test_a_person_can_try_again_after_an_error_and_after_ctrl_c():
    session = Session(CommandError("No."), KeyboardInterrupt(), None, EOFError())
    converse(session, iter("abcd").__next__, watched=True)
    assert session.handled == list("abcd")
    assert session.said == ["No.", "\nCtrl-D or /exit ends the chat."]


def test_a_failed_turn_is_forgotten(astrai, local_engine):
    local_engine(FakeEngine.scripted(Reply("Par", GenerationError("It broke."))))
    result = astrai("chat", stdin="hi\n")
    assert result.exit_code == 3
    assert "It broke." in result.stderr
