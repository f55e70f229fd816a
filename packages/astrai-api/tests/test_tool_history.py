"""Results of earlier calls get the name of their tool."""

from astrai_api.tools.history import name_results


def call(call_id, name):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def test_results_in_any_order_get_the_name_of_their_call():
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call("1", "f"), call("2", "g")]},
        {"role": "tool", "tool_call_id": "2", "content": "b"},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "tool", "tool_call_id": "3", "content": "c"},
        {"role": "tool", "tool_call_id": "1", "name": "own", "content": "a"},
        {"role": "tool", "content": "d"},
    ]
    name_results(messages)
    assert [message.get("name") for message in messages[1:]] == ["g", "f", None, "own", None]


def test_a_later_call_may_have_the_id_of_an_earlier_one():
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call("1", "f")]},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call("1", "g")]},
        {"role": "tool", "tool_call_id": "1", "content": "b"},
    ]
    name_results(messages)
    assert [m["name"] for m in messages if m["role"] == "tool"] == ["f", "g"]
