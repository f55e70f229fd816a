"""What requests want done with their tools, the same for all protocols."""

import pytest

from astrai_api.errors import ApiError
from astrai_api.tools.choice import ToolChoice, check_names, choose
from astrai_api.tools.tool import Tool

F, G = Tool("f"), Tool("g")


def test_none_tells_the_model_and_lets_it_call_nothing():
    assert choose([F, G], "none") == ToolChoice(tools=(F, G))


def test_auto():
    choice = choose([F, G], "auto", is_parallel=False)
    assert choice == ToolChoice(tools=(F, G), callable=(F, G), is_parallel=False)
    assert not choice.is_limited


def test_required():
    assert choose([F, G], "required").is_forced
    assert choose([F, G], "required").callable == (F, G)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_names_limit_what_may_be_called(mode):
    choice = choose([F, G], mode, ["g"])
    assert (choice.tools, choice.callable) == ((F, G), (G,))
    assert choice.is_limited


def test_no_tools_and_no_wish_is_a_chat_without_any():
    assert choose([], "auto") == ToolChoice()


@pytest.mark.parametrize(
    ("tools", "mode", "names"),
    [
        ([], "required", None),
        ([F], "required", ["h"]),
        ([F], "auto", ["f", "h"]),
        ([], "auto", ["f"]),
    ],
)
def test_a_call_that_nothing_can_serve_is_refused(tools, mode, names):
    with pytest.raises(ApiError) as caught:
        choose(tools, mode, names)
    assert (caught.value.status, caught.value.param) == (400, "tool_choice")


def test_names_fit():
    check_names(["a", "B_9-", "x" * 64], longest=64, param="tools[{}].name")


@pytest.mark.parametrize(
    ("names", "param"),
    [
        ([""], "tools[0].name"),
        (["f", "a b"], "tools[1].name"),
        (["é"], "tools[0].name"),
        (["f\n"], "tools[0].name"),
        (["x" * 65], "tools[0].name"),
        (["f", "g", "f"], "tools[2].name"),
    ],
)
def test_names_that_do_not_are_refused(names, param):
    with pytest.raises(ApiError) as caught:
        check_names(names, longest=64, param="tools[{}].name")
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message
