import math

import pytest

from astrai_engine.errors import InvalidRequestError
from astrai_engine.request import GenerationRequest


def test_the_defaults_of_the_seed():
    request = GenerationRequest(messages=[{"role": "user", "content": "hi"}])
    assert (request.top_k, request.top_p, request.temperature) == (50, 1.0, 1.0)
    assert request.max_tokens is None
    assert (request.frequency_penalty, request.rep_window, request.stream) == (0.0, 64, False)


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -1.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"presence_penalty": -3.0}, "presence_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": math.nan}, "repetition_penalty"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"rep_window": -1}, "rep_window"),
        ({"queue_timeout": -1.0}, "queue_timeout"),
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        ({"stop": [""]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(parameters, param):
    """B055, B104, B115, B121."""
    with pytest.raises(InvalidRequestError, match=param) as refused:
        GenerationRequest(prompt="x", **parameters)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0, "top_p": 0.0, "top_k": 0, "min_p": 0.0},
        {"temperature": 5.0, "top_p": 1.0, "top_k": -1, "min_p": 1.0},
        {"seed": -(2**63), "n": 128, "max_tokens": 0},
        {"logprobs": True, "top_logprobs": 20, "stop": ["x"] * 16},
    ],
)
def test_the_ends_of_the_ranges_are_fine(parameters):
    GenerationRequest(prompt="x", **parameters)


def test_exactly_one_prompt_form():
    for forms in ({}, {"prompt": "a", "prompt_token_ids": [1]}):
        with pytest.raises(InvalidRequestError, match="exactly one"):
            GenerationRequest(**forms)


def test_empty_messages_have_the_wording_clients_look_for():
    with pytest.raises(InvalidRequestError, match="messages: at least one message is required"):
        GenerationRequest(messages=[])


def test_one_stop_string_may_stand_alone():
    assert GenerationRequest(prompt="x", stop="end").stop == ("end",)
