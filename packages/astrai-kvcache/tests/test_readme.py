import re
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

README = Path(__file__).parents[1] / "README.md"


def alone(embedding, token_ids):
    """The layer's output for the last token, computed from the whole sequence at once."""
    hidden = embedding[token_ids].double().transpose(0, 1)
    return scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)[:, -1:]


def test_the_example_runs_and_is_right():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    scope = {}
    exec(compile(code, str(README), "exec"), scope)
    for name in ("a", "b"):
        expected = alone(scope["embedding"], scope["prompts"][name])
        torch.testing.assert_close(scope[f"out_{name}"].double(), expected, rtol=1e-5, atol=1e-5)
    assert scope["cached"] == 8
    assert scope["pool"].num_in_use_pages == 0
