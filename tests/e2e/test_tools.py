"""Tool loops of the official SDKs on the embedded model: what has to be called is enforced."""

import json

import anthropic
import openai
import pydantic
import pytest


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str = pydantic.Field(max_length=20)


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
CALCULATOR = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 999},
        "operation": {"enum": ["add", "multiply"]},
        "b": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["a", "operation", "b"],
    "additionalProperties": False,
}
TOOLS = {
    "get_weather": ("The weather in a city.", WEATHER),
    "calculate": ("Adds or multiplies two numbers.", CALCULATOR),
}
OPENAI_TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": schema},
    }
    for name, (description, schema) in TOOLS.items()
]
ANTHROPIC_TOOLS = [
    {"name": name, "description": description, "input_schema": schema}
    for name, (description, schema) in TOOLS.items()
]
QUESTION = [{"role": "user", "content": "What is the weather in Paris, and what is 17 times 3?"}]
NAMES = ["get_weather", "calculate"]


def run_tool(name, arguments):
    """What a client does with a call; fails on arguments that do not match the schema."""
    if name == "get_weather":
        assert set(arguments) == {"city"}
        assert isinstance(arguments["city"], str)
        return f"Sunny in {arguments['city']}, 21 degrees."
    assert name == "calculate"
    assert set(arguments) == {"a", "operation", "b"}
    a, b = arguments["a"], arguments["b"]
    return str(a + b if arguments["operation"] == "add" else a * b)


@pytest.fixture
def openai_client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
one_or_several = pytest.mark.parametrize("parallel", [False, True], ids=["single", "parallel"])


class TestOpenAI:
    @pytest.fixture
    def ask(self, openai_client):
        def create(messages, *, stream, **fields):
            body = {"model": "astrai", "messages": messages, "tools": OPENAI_TOOLS, **fields}
            body = {"max_tokens": 160, "temperature": 0, **body}
            if not stream:
                return openai_client.chat.completions.create(**body).choices[0]
            with openai_client.chat.completions.stream(**body) as events:
                return events.get_final_completion().choices[0]

        return create

    @both_ways
    @one_or_several
    def test_round_trip(self, ask, stream, parallel):
        """Both tools, one after the other by name, and an answer to their results."""
        messages = list(QUESTION)
        for name in NAMES:
            choice = ask(
                messages,
                stream=stream,
                parallel_tool_calls=parallel,
                tool_choice={"type": "function", "function": {"name": name}},
            )
            assert choice.finish_reason == "tool_calls"
            calls = choice.message.tool_calls
            assert {call.function.name for call in calls} == {name}
            assert parallel or len(calls) == 1
            assert len({call.id for call in calls}) == len(calls)
            messages.append(choice.message.to_dict())
            for call in calls:
                result = run_tool(name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        # The helper for streams fails on texts that are cut, and this one is.
        choice = ask(messages, stream=False, tool_choice="none", max_tokens=16)
        assert choice.message.content
        assert not choice.message.tool_calls
        assert choice.finish_reason in ("stop", "length")

    @both_ways
    @pytest.mark.parametrize("temperature", [0, 1])
    def test_required(self, ask, stream, temperature):
        """B147: whatever the model would like to say, it calls."""
        choice = ask(QUESTION, stream=stream, tool_choice="required", temperature=temperature)
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        for call in choice.message.tool_calls:
            run_tool(call.function.name, json.loads(call.function.arguments))

    def test_auto(self, ask):
        """The model is free; what it does is a text or calls of the tools there are."""
        choice = ask(QUESTION, stream=False, max_tokens=48)
        assert choice.message.content or choice.message.tool_calls
        assert "<tool_call>" not in (choice.message.content or "")

    def test_results_in_any_number_and_order(self, ask):
        call = {"type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        calls = [{"id": f"c{number}", **call} for number in range(3)]
        results = [
            {"role": "tool", "tool_call_id": f"c{number}", "content": "sunny"} for number in (2, 0)
        ]
        said = {"role": "assistant", "content": None, "tool_calls": calls}
        choice = ask([*QUESTION, said, *results], stream=False, max_tokens=4)
        assert choice.finish_reason in ("stop", "length")

    def test_parsed_by_the_sdk(self, openai_client):
        tool = openai.pydantic_function_tool(Weather)
        completion = openai_client.chat.completions.parse(
            model="astrai",
            messages=QUESTION,
            tools=[tool],
            tool_choice="required",
            temperature=0,
            max_tokens=160,
        )
        (call, *_) = completion.choices[0].message.tool_calls
        assert isinstance(call.function.parsed_arguments, Weather)


class TestResponses:
    @both_ways
    def test_round_trip(self, openai_client, stream):
        tools = [{**tool["function"], "type": "function", "strict": True} for tool in OPENAI_TOOLS]
        body = {"model": "astrai", "tools": tools, "temperature": 0, "max_output_tokens": 160}
        items = list(QUESTION)
        for name in NAMES:
            choice = {"type": "function", "name": name}
            response = self.create(openai_client, stream, input=items, tool_choice=choice, **body)
            assert {item.type for item in response.output} == {"function_call"}
            items += [item.to_dict() for item in response.output]
            items += [
                {
                    "type": "function_call_output",
                    "call_id": item.call_id,
                    "output": run_tool(item.name, json.loads(item.arguments)),
                }
                for item in response.output
            ]
        body["max_output_tokens"] = 16
        response = self.create(openai_client, stream, input=items, tool_choice="none", **body)
        assert response.output_text

    def create(self, client, stream, **body):
        if not stream:
            return client.responses.create(**body)
        last = None
        for event in client.responses.create(stream=True, **body):
            last = event
        return last.response


class TestAnthropic:
    @pytest.fixture
    def ask(self, anthropic_client):
        def create(messages, *, stream, **fields):
            body = {"model": "astrai", "messages": messages, "tools": ANTHROPIC_TOOLS, **fields}
            body = {"max_tokens": 160, "extra_body": {"temperature": 0}, **body}
            if not stream:
                return anthropic_client.messages.create(**body)
            with anthropic_client.messages.stream(**body) as events:
                return events.get_final_message()

        return create

    @both_ways
    @one_or_several
    def test_round_trip(self, ask, stream, parallel):
        messages = list(QUESTION)
        for name in NAMES:
            choice = {"type": "tool", "name": name, "disable_parallel_tool_use": not parallel}
            message = ask(messages, stream=stream, tool_choice=choice)
            assert message.stop_reason == "tool_use"
            uses = [block for block in message.content if block.type == "tool_use"]
            assert {use.name for use in uses} == {name}
            assert parallel or len(uses) == 1
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": use.id,
                    "content": [{"type": "text", "text": run_tool(name, use.input)}],
                }
                for use in uses
            ]
            messages += [
                {"role": "assistant", "content": message.content},
                {"role": "user", "content": results},
            ]
        message = ask(messages, stream=stream, tool_choice={"type": "none"}, max_tokens=16)
        assert message.content[0].text
        assert message.stop_reason in ("end_turn", "max_tokens")

    @both_ways
    def test_any(self, ask, stream):
        message = ask(QUESTION, stream=stream, tool_choice={"type": "any"})
        assert message.stop_reason == "tool_use"
        for block in message.content:
            run_tool(block.name, block.input)

    def test_counting_equals_what_is_read(self, anthropic_client):
        body = {"model": "astrai", "messages": QUESTION, "tools": ANTHROPIC_TOOLS}
        counted = anthropic_client.messages.count_tokens(**body).input_tokens
        usage = anthropic_client.messages.create(max_tokens=1, **body).usage
        assert counted == usage.input_tokens + usage.cache_read_input_tokens
