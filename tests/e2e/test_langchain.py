"""LangChain's ChatOpenAI and ChatAnthropic, unmodified, over a real socket."""

from functools import reduce
from operator import add

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

# LangChain tells of its own changes; what it does with our answers is what matters here.
pytestmark = pytest.mark.filterwarnings("ignore")

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
COUNTS = ("input_tokens", "output_tokens", "total_tokens")


@pytest.fixture
def chat_openai(server):
    def make(**options):
        settings = {"temperature": 0, "max_tokens": 32, "max_retries": 0, **options}
        return ChatOpenAI(base_url=f"{server.url}/v1", api_key="any", model="astrai", **settings)

    return make


@pytest.fixture
def chat_anthropic(server):
    def make(**options):
        settings = {"temperature": 0, "max_tokens": 32, "max_retries": 0, **options}
        return ChatAnthropic(base_url=server.url, api_key="any", model="astrai", **settings)

    return make


@pytest.fixture(params=["chat_openai", "chat_anthropic"])
def chat(request):
    """Both classes, for what is the same in both."""
    return request.getfixturevalue(request.param)


def joined(model, *args):
    """The chunks of a stream added up, as LangChain does."""
    chunks = list(model.stream(*args))
    assert len(chunks) > 2
    return reduce(add, chunks)


def counts(message):
    return {name: message.usage_metadata[name] for name in COUNTS}


def test_a_stream_adds_up_to_the_answer(chat):
    """Usage in two chunks would be doubled, a second finish reason would read "stopstop"."""
    whole, streamed = chat().invoke(QUESTION), joined(chat(), QUESTION)
    assert whole.text == streamed.text == ANSWER
    assert counts(whole)["input_tokens"] == 37
    end = {"finish_reason": "stop", "stop_reason": "end_turn"}
    for message in (whole, streamed):
        told = message.response_metadata
        assert any(told.get(name) == value for name, value in end.items())


@pytest.mark.parametrize("options", [{"stream_usage": True}, {}])
def test_usage_of_an_openai_stream_is_that_of_the_answer(chat_openai, options):
    whole, streamed = chat_openai().invoke(QUESTION), joined(chat_openai(**options), QUESTION)
    if options or streamed.usage_metadata:
        assert counts(streamed) == counts(whole)


def test_usage_of_an_anthropic_stream_is_that_of_the_answer(chat_anthropic):
    """LangChain reads that of ``message_delta`` only."""
    assert counts(joined(chat_anthropic(), QUESTION)) == counts(chat_anthropic().invoke(QUESTION))


def test_max_tokens_arrive(chat):
    """ChatOpenAI sends ``max_completion_tokens``."""
    message = chat(max_tokens=3).invoke(QUESTION)
    assert message.text == "The capital of"
    assert message.usage_metadata["output_tokens"] == 3


def test_stops_arrive(chat):
    assert chat().invoke(QUESTION, stop=["l of Fr"]).text == "The capita"


def test_a_history_of_all_roles(chat):
    history = [
        SystemMessage("Be brief."),
        HumanMessage("Hello."),
        AIMessage("Hello! How can I help?"),
        HumanMessage(QUESTION),
    ]
    assert "Paris" in chat().invoke(history).text


def test_a_batch(chat):
    assert [message.text for message in chat().batch([QUESTION] * 4)] == [ANSWER] * 4


async def test_async(chat):
    assert (await chat().ainvoke(QUESTION)).text == ANSWER
    assert "".join([chunk.text async for chunk in chat().astream(QUESTION)]) == ANSWER


def test_a_refusal_says_what_is_wrong(chat_openai):
    with pytest.raises(Exception, match="temperature") as refusal:
        chat_openai().invoke(QUESTION, temperature=99)
    assert refusal.value.status_code == 422


def test_a_prompt_beyond_the_context_is_its_own_class_of_error(chat):
    with pytest.raises(ContextOverflowError):
        chat().invoke("fox " * 9000)


def test_logprobs(chat_openai):
    message = chat_openai(max_tokens=3).bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    entries = message.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == "The capital of"
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_the_responses_api(chat_openai):
    model = chat_openai(use_responses_api=True)
    assert model.invoke(QUESTION).text == ANSWER
    assert joined(model, QUESTION).text == ANSWER


def test_sampling_parameters_arrive_at_messages(chat_anthropic):
    model = chat_anthropic(temperature=0.5, top_k=3, top_p=0.9, max_tokens=2)
    message = model.invoke([SystemMessage("Be brief."), HumanMessage("Hello.")])
    assert message.usage_metadata["output_tokens"] == 2


def test_more_tokens_than_the_context_has_room_for_are_no_error(chat_anthropic):
    """ChatAnthropic asks for thousands by itself."""
    message = chat_anthropic(max_tokens=100_000).invoke(QUESTION)
    assert message.text == ANSWER


def test_anthropic_counts_tokens(chat_anthropic):
    assert chat_anthropic().get_num_tokens_from_messages([HumanMessage(QUESTION)]) == 37
