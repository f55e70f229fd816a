"""The CUDA sampling kernel, on the emulator, draws the tokens that the engine's sampler draws."""

import pytest
import torch
from emulator import Emulator, build
from kernel_calls import Kernels

from astrai_engine.request import GenerationRequest
from astrai_engine.sampling import Sampler
from astrai_engine.sequence import Sequence

VOCAB = 1500
PARAMETERS = (
    {"temperature": 1.0, "top_k": -1},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.2, "top_k": -1, "top_p": 0.95},
    {"temperature": 9.0, "top_k": 1200, "top_p": 0.999},
    {"temperature": 2.0, "top_k": -1, "min_p": 0.01},
)


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return Kernels(Emulator(build(tmp_path_factory.mktemp("sampling"), name="sampling")))


def sequence(seed, index, parameters):
    return Sequence(
        task_id="t",
        request_id="r",
        request=GenerationRequest(prompt_token_ids=[1, 2], **parameters),
        index=index,
        token_ids=[1, 2, *[5] * (seed % 7)],
        num_prompt_tokens=2,
        max_tokens=40,
        arrival=0,
        seed=seed,
    )


def row_of(sequence):
    request = sequence.request
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "top_k": request.top_k,
        "seed": sequence.seed % 2**64,
        "choice": sequence.index,
        "position": sequence.num_generated,
    }


def test_the_same_seed_gives_the_same_token(kernels):
    logits = 3 * torch.randn(60, VOCAB, generator=torch.Generator().manual_seed(0))
    sequences = [
        sequence((-1) ** n * n * 10**15, n % 3, PARAMETERS[n % len(PARAMETERS)])
        for n in range(len(logits))
    ]
    tokens = kernels.sample(logits, [row_of(each) for each in sequences])
    sampled = Sampler(frozenset()).sample(logits, sequences)
    assert tokens == [token.token_id for token in sampled]
