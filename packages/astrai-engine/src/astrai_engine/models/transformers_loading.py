"""Loading what transformers knows and we do not, and finding out whether it runs here.

Before a model is served, a few tokens are computed by transformers' attention and by ours, and
compared.
"""

import importlib
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astrai_engine.errors import ModelLoadError, UnsupportedArchitectureError
from astrai_engine.models.config import LayerConfig, ModelConfig, token_ids
from astrai_engine.models.rope import RopeConfig
from astrai_engine.models.transformers_attention import ATTENTION, attend, attention_of
from astrai_engine.models.transformers_model import TransformersModel, logits_of
from astrai_kernels import TorchNativeBackend
from astrai_kvcache import BindWorkspace, PagePool

EXTRA = "transformers"
"""The optional extra that installs what this module needs."""

_TRIAL_TOKENS = 9
_TRIAL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError)
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class _Trial:
    """Stands for a step in the first trial: notes what layers ask for, and computes nothing."""

    key_shapes: dict[int, tuple[int, int]] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)

    def attend(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Give zeros."""
        del v
        self.key_shapes[layer_id] = (k.shape[1], k.shape[2])
        self.windows[layer_id] = options["window"]
        return torch.zeros_like(q)


def load_with_transformers(
    folder: Path, *, device: torch.device, dtype: torch.dtype, reason: UnsupportedArchitectureError
) -> TransformersModel:
    """Load a checkpoint of an architecture that is not one of ours.

    Args:
        folder: the checkpoint.
        device: where its weights go.
        dtype: of its weights.
        reason: why it is not one of ours.

    Raises:
        UnsupportedArchitectureError: transformers is not installed or does not know the model
            either, or the model does not attend as ours do; the message says which.
        ModelLoadError: tensors are missing or of another shape; all are named.
    """
    if find_spec("transformers") is None:
        raise UnsupportedArchitectureError(
            f"{reason} transformers may know it: install astrai-engine[{EXTRA}]."
        ) from reason
    transformers = importlib.import_module("transformers")
    transformers.AttentionInterface.register(ATTENTION, attend)
    try:
        module, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, ImportError, OSError) as error:
        raise UnsupportedArchitectureError(
            f"{reason} transformers cannot load it either: {error}"
        ) from error
    _check_loaded(folder, info)
    module = module.to(device).eval()
    try:
        with torch.inference_mode():
            return TransformersModel(module, _checked_config(module))
    except _TRIAL_ERRORS as error:
        raise UnsupportedArchitectureError(
            f"{reason} transformers knows it, but cannot run it here: {error}"
        ) from error


def _check_loaded(folder: Path, info: dict[str, Any]) -> None:
    problems = [f"{name} is missing" for name in sorted(info["missing_keys"])]
    problems += [f"{each} has another shape" for each in sorted(map(str, info["mismatched_keys"]))]
    if problems:
        raise ModelLoadError(f"{folder} cannot be loaded: {'; '.join(problems)}.")


def _checked_config(module: Any) -> ModelConfig:
    """What the engine needs to know of a module, once trials show that its attention is ours.

    Raises:
        ValueError: it is not; the message says how it differs.
    """
    text = module.config.get_text_config(decoder=True)
    rope, kinds = getattr(text, "rope_parameters", None) or {}, getattr(text, "layer_types", None)
    if {rope.get("rope_type")} & {"dynamic", "longrope"}:
        raise ValueError("its rotation changes with the length of what is computed together.")
    if set(kinds or ()) - {"full_attention", "sliding_attention"}:
        raise ValueError("some of its layers are of a kind that keeps more than keys and values.")
    ids = torch.arange(1, _TRIAL_TOKENS + 1, device=module.device) % text.vocab_size
    positions = torch.arange(_TRIAL_TOKENS, device=module.device)
    expected = logits_of(module, ids, positions)
    module.set_attn_implementation(ATTENTION)
    trial = _Trial()
    with attention_of(trial):
        logits_of(module, ids, positions)
    config = _config(text, _key_shape(text, kinds, trial))
    # The median over tokens: a rounding may send a few of them through other experts.
    found = _attendedlogits_of(module, config, ids, positions)
    error = (found - expected).abs().amax(-1).median() / expected.abs().max()
    if not error <= _TOLERANCE[module.dtype]:
        raise ValueError("with attention as it is computed here, the logits of a trial differ.")
    return config


def _key_shape(text: Any, kinds: list[str] | None, trial: _Trial) -> tuple[int, int]:
    """K/V heads and their dimensions, which must be alike in all layers."""
    shapes = set(trial.key_shapes.values())
    if sorted(trial.key_shapes) != list(range(text.num_hidden_layers)) or len(shapes) != 1:
        raise ValueError(
            "its layers do not all go through the attention interface, with keys of equal shapes."
        )
    has_window = [kind == "sliding_attention" for kind in kinds or ()]
    silent = [i for i, has in enumerate(has_window) if has and trial.windows[i] is None]
    if silent and getattr(text, "sliding_window", None) is not None:
        raise ValueError(f"layer {silent[0]} does not tell attention of its window.")
    return shapes.pop()


def _attendedlogits_of(module: Any, config: ModelConfig, ids: Tensor, positions: Tensor) -> Tensor:
    """The logits of one short request in two chunks, in a cache of its own."""
    pool = PagePool(
        config.num_layers,
        config.num_kv_heads,
        config.head_dim,
        1,
        len(ids),
        module.device,
        module.dtype,
        page_size=1,
        n_tokens=len(ids),
    )
    workspace = BindWorkspace(1, len(ids), module.device)
    model, backend, logits = TransformersModel(module, config), TorchNativeBackend(), []
    for start, end in ((0, len(ids) // 2), (len(ids) // 2, len(ids))):
        if start:
            pool.task_extend("trial", end - 1)
        else:
            pool.task_alloc("trial", ids[:end].tolist())
        cache = pool.bind_tasks(["trial"], workspace, q_lens=[end - start])
        chunk = slice(start, end)
        logits.append(model.forward(ids[chunk], positions[chunk], cache, backend))
    return torch.cat(logits)


def _config(text: Any, key_shape: tuple[int, int]) -> ModelConfig:
    num_kv_heads, head_dim = key_shape
    return ModelConfig(
        architecture=text.model_type,
        num_layers=text.num_hidden_layers,
        num_heads=text.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        hidden_size=text.hidden_size,
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        vocab_size=text.vocab_size,
        max_seq_len=text.max_position_embeddings,
        rms_norm_eps=getattr(text, "rms_norm_eps", 0.0),
        rope=RopeConfig(),
        layers=(LayerConfig(),) * text.num_hidden_layers,
        eos_token_ids=token_ids(text.eos_token_id),
    )
