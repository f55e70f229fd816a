"""LiteLLM's ``openai/`` and ``anthropic/`` routes, unmodified, over a real socket."""

import asyncio

import pytest

# LiteLLM warns of its own dependencies; what it does with our answers is what matters here.
pytestmark = pytest.mark.filterwarnings("ignore")

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def litellm():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no download of a price list
        import litellm  # noqa: PLC0415 - it reads its environment when it is imported
    return litellm


@pytest.fixture(autouse=True)
def _event_loop():
    """LiteLLM asks for the thread's loop in synchronous calls too, and would leave one open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(params=["openai", "anthropic"])
def route(request, server):
    base = f"{server.url}/v1" if request.param == "openai" else server.url
    return {"model": f"{request.param}/astrai", "api_base": base, "api_key": "any"}


@pytest.fixture
def complete(litellm, route):
    """``complete(**options)`` on each of the routes."""
    defaults = {"messages": QUESTION, "max_tokens": 32, "temperature": 0, "max_retries": 0}

    def run(**options):
        return litellm.completion(**route, **{**defaults, **options})

    return run


def text_of(answer):
    return answer.choices[0].message.content


def test_an_answer(complete):
    answer = complete()
    assert text_of(answer) == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.total_tokens == 37 + answer.usage.completion_tokens


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
def test_a_stream_rebuilt_is_the_answer(litellm, complete, options):
    """Its usage is the server's: without one, LiteLLM makes a guess."""
    whole = complete()
    chunks = list(complete(stream=True, **options))
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in deltas) == ANSWER
    assert [choice.finish_reason for choice in deltas if choice.finish_reason] == ["stop"]
    rebuilt = litellm.stream_chunk_builder(chunks, messages=QUESTION)
    assert text_of(rebuilt) == ANSWER
    assert rebuilt.usage.prompt_tokens == whole.usage.prompt_tokens
    assert rebuilt.usage.completion_tokens == whole.usage.completion_tokens


def test_max_tokens(complete):
    answer = complete(max_tokens=3)
    assert text_of(answer) == "The capital of"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_a_stop(complete):
    answer = complete(stop=["l of Fr"])
    assert text_of(answer) == "The capita"
    assert answer.choices[0].finish_reason == "stop"


def test_async(litellm, route):
    async def run():
        options = {"messages": QUESTION, "max_tokens": 32, "temperature": 0}
        whole = await litellm.acompletion(**route, **options)
        stream = await litellm.acompletion(**route, **options, stream=True)
        deltas = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        return text_of(whole), "".join(deltas)

    assert asyncio.run(run()) == (ANSWER, ANSWER)


def test_roles_and_parts(complete):
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]},
    ]
    assert "Paris" in text_of(complete(messages=history))


def test_no_max_tokens_is_no_error(complete):
    """For a model it does not know, the anthropic route asks for 128,000."""
    assert text_of(complete(max_tokens=None)) == ANSWER


def test_parameters_that_only_this_server_knows(litellm, server):
    answer = litellm.completion(
        model="openai/astrai",
        api_base=f"{server.url}/v1",
        api_key="any",
        messages=QUESTION,
        max_tokens=2,
        seed=1,
        user="somebody",
        extra_body={"top_k": 1, "something_unknown": 1},
    )
    assert text_of(answer) == "The capital"


def test_a_bad_parameter_is_the_callers_error(litellm, complete):
    with pytest.raises((litellm.BadRequestError, litellm.UnprocessableEntityError), match="temp"):
        complete(temperature=99)


def test_a_prompt_beyond_the_context_is_its_own_class_of_error(litellm, complete):
    with pytest.raises(litellm.ContextWindowExceededError):
        complete(messages=[{"role": "user", "content": "fox " * 9000}])


def test_a_text_completion(litellm, server):
    answer = litellm.text_completion(
        model="text-completion-openai/astrai",
        api_base=f"{server.url}/v1",
        api_key="any",
        prompt="The capital of France is",
        max_tokens=2,
        temperature=0,
    )
    assert answer.choices[0].text.strip().startswith("Paris")
