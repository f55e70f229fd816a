"""The official SDKs, unmodified, over a real socket."""

import asyncio

import anthropic
import openai
import pytest

ANSWER = "The capital of France is Paris."
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PROMPTS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is two plus two?",
    "Who wrote Hamlet?",
    "Say hello in Spanish.",
    "What do bees make?",
    "How many days has a week?",
]


@pytest.fixture
def openai_client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def test_openai(openai_client):
    answer = openai_client.chat.completions.create(
        model="astrai", messages=QUESTION, temperature=0, max_tokens=32
    )
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.total_tokens == 37 + answer.usage.completion_tokens


def test_openai_streamed(openai_client):
    stream = openai_client.chat.completions.create(
        model="astrai", messages=QUESTION, temperature=0, max_tokens=32, stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == ANSWER


def test_anthropic(anthropic_client):
    message = anthropic_client.messages.create(
        model="astrai", messages=QUESTION, max_tokens=32, extra_body={"temperature": 0}
    )
    assert [block.text for block in message.content] == [ANSWER]
    assert message.stop_reason == "end_turn"


def test_anthropic_streamed(anthropic_client):
    with anthropic_client.messages.stream(
        model="astrai", messages=QUESTION, max_tokens=32, extra_body={"temperature": 0}
    ) as stream:
        assert "".join(stream.text_stream) == ANSWER
        assert stream.get_final_message().stop_reason == "end_turn"


def test_a_length_cut_is_called_so_in_both_protocols(openai_client, anthropic_client):
    answer = openai_client.chat.completions.create(
        model="astrai", messages=QUESTION, temperature=0, max_tokens=3
    )
    assert answer.choices[0].finish_reason == "length"
    message = anthropic_client.messages.create(
        model="astrai", messages=QUESTION, max_tokens=3, extra_body={"temperature": 0}
    )
    assert message.stop_reason == "max_tokens"


def test_a_stop_string_ends_the_text_before_it(openai_client, anthropic_client):
    """B071, B076."""
    answer = openai_client.chat.completions.create(
        model="astrai", messages=QUESTION, temperature=0, max_tokens=32, stop=["l of Fr"]
    )
    assert answer.choices[0].message.content == "The capita"
    assert answer.choices[0].finish_reason == "stop"
    message = anthropic_client.messages.create(
        model="astrai",
        messages=QUESTION,
        max_tokens=32,
        stop_sequences=["never", " Paris"],
        extra_body={"temperature": 0},
    )
    assert message.content[0].text == "The capital of France is"
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " Paris")


def test_a_prompt_sent_twice_is_cached_and_answered_the_same(openai_client):
    question = [{"role": "user", "content": "Tell me in one sentence what a lighthouse is for."}]
    first, second = (
        openai_client.chat.completions.create(
            model="astrai", messages=question, temperature=0, max_tokens=24
        )
        for _ in range(2)
    )
    assert second.choices[0].message.content == first.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens >= 32
    assert second.usage.prompt_tokens == first.usage.prompt_tokens


def ask(client, system, *turns):
    return client.messages.create(
        model="astrai", system=system, messages=list(turns), max_tokens=4, metadata={"user_id": "u"}
    )


def test_a_billing_line_that_changes_does_not_spoil_the_cache(anthropic_client):
    """B023: Claude Code puts one with a random part at the front of every system prompt."""
    rules = "You are an agent that looks after a lighthouse. " * 8

    def system(part):
        line = f"x-anthropic-billing-header: cc_version=2.1.288; cch={part};"
        return [{"type": "text", "text": line}, {"type": "text", "text": rules}]

    first = ask(anthropic_client, system("1f3a9"), *QUESTION).usage
    second = ask(anthropic_client, system("77b0c"), *QUESTION).usage
    assert second.cache_read_input_tokens >= 64
    whole = [usage.input_tokens + usage.cache_read_input_tokens for usage in (first, second)]
    assert whole[0] == whole[1]


def test_a_system_message_in_the_middle_does_not_spoil_the_cache(anthropic_client):
    """B024: moved to the front it would change the beginning of every later prompt."""
    text = "Describe the harbour, the boats in it and the people who mend the nets. " * 4
    turn = [{"role": "user", "content": text}, {"role": "system", "content": "Ten tokens left."}]
    first = ask(anthropic_client, "Be brief.", *turn)
    more = [{"role": "assistant", "content": "Nets."}, {"role": "user", "content": "And?"}]
    second = ask(anthropic_client, "Be brief.", *turn, *more).usage
    assert second.cache_read_input_tokens >= 64
    assert second.cache_read_input_tokens >= first.usage.input_tokens - 32


async def test_eight_streams_at_once_give_each_the_text_it_gets_alone(server):
    """Any difference would have to be a tie: these prompts have none within 1e-3 at any step."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any") as client:

        async def read(prompt):
            stream = await client.chat.completions.create(
                model="astrai",
                messages=[{"role": "user", "content": prompt}],
                temperature=0,
                max_tokens=24,
                stream=True,
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        alone = [await read(prompt) for prompt in PROMPTS]
        together = await asyncio.gather(*[read(prompt) for prompt in PROMPTS])
    assert together == alone
    assert len(set(alone)) == len(PROMPTS)
