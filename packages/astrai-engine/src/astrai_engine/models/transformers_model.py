"""Any decoder that transformers knows: its own module, over our attention and paged cache.

Slower than a model of our own, and right: before a model is served, a few tokens are computed by
transformers' attention and by ours, and compared.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name the torch world knows it by

from astrai_engine.errors import ModelLoadError, UnsupportedArchitectureError
from astrai_engine.models.config import LayerConfig, ModelConfig, token_ids
from astrai_engine.models.rope import RopeConfig
from astrai_kernels import AttentionBackend, AttentionCache, TorchNativeBackend
from astrai_kvcache import BindWorkspace, PagePool

ATTENTION = "astrai"
"""What transformers calls our attention."""

EXTRA = "transformers"
"""The optional extra that installs what this module needs."""

_TRIAL_TOKENS = 9
_TRIAL_ERRORS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError)
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class _Step:
    """What attention needs, and transformers does not pass on."""

    cache: AttentionCache
    backend: AttentionBackend

    def attend(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.backend.attend(q, k, v, self.cache, layer_id, **options)


@dataclass(frozen=True)
class _Trial:
    """Stands for a step in the first trial: notes each layer's keys, and computes nothing."""

    key_shapes: dict[int, tuple[int, int]] = field(default_factory=dict)

    def attend(self, layer_id: int, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        del v, options
        self.key_shapes[layer_id] = (k.shape[1], k.shape[2])
        return torch.zeros_like(q)


_current: ContextVar[_Step | _Trial] = ContextVar("astrai_step")


@contextmanager
def _during(step: _Step | _Trial) -> Iterator[None]:
    token = _current.set(step)
    try:
        yield
    finally:
        _current.reset(token)


def attend(  # noqa: PLR0913 - transformers' interface
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it, of the step under way.

    Args:
        module: the attention layer.
        query: ``[1, n_heads, tokens, head_dim]``, rotated.
        key: ``[1, n_kv_heads, tokens, head_dim]``, rotated.
        value: the same, with a ``head_dim`` that may be smaller.
        attention_mask: unused: what a token sees is known from the cache.
        scaling: factor on scores.
        sliding_window: in tokens, or None.
        softcap: of scores, or None.
        options: what else transformers passes; the trial at load shows whether any of it matters.

    Returns:
        ``[1, tokens, n_heads, value's head_dim]``, and no attention weights.
    """
    del attention_mask, options
    q, k, v = (each.squeeze(0).transpose(0, 1) for each in (query, key, value))
    width = v.shape[-1]
    if width < k.shape[-1]:
        v = F.pad(v, (0, k.shape[-1] - width))
    out = _current.get().attend(
        module.layer_idx, q, k, v, scale=scaling, softcap=softcap, window=sliding_window
    )
    return out[..., :width].unsqueeze(0), None


class TransformersModel:
    """A model that runs transformers' module; made by `load_with_transformers`.

    Args:
        module: a causal language model whose attention is ours.
        config: what the engine needs to know of it.
    """

    def __init__(self, module: Any, config: ModelConfig) -> None:
        self.config = config
        self._module = module

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(self._module.device)

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        dtype: torch.dtype = self._module.dtype
        return dtype

    def fit_context(self, max_seq_len: int) -> None:
        """Nothing to prepare: the module computes its angles as it goes."""

    def position_offset(self, seq_len: int) -> int:
        """See `LlamaModel.position_offset`: always 0."""
        del seq_len
        return 0

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cache: AttentionCache,
        backend: AttentionBackend,
        *,
        logit_rows: Tensor | None = None,
    ) -> Tensor:
        """Compute logits of packed tokens; see `LlamaModel.forward`."""
        with _during(_Step(cache, backend)):
            return _logits(self._module, input_ids, position_ids, logit_rows)


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


def _logits(
    module: Any, input_ids: Tensor, position_ids: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Float32 ``[rows, vocab]`` of packed tokens."""
    out = module(
        input_ids=input_ids.unsqueeze(0),
        position_ids=position_ids.unsqueeze(0),
        use_cache=False,
        logits_to_keep=0 if rows is None else rows,
    )
    logits: Tensor = out.logits[0].float()
    return logits


def _checked_config(module: Any) -> ModelConfig:
    """What the engine needs to know of a module, once trials show that its attention is ours.

    Raises:
        ValueError: it is not; the message says how it differs.
    """
    text = module.config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    if {rope.get("rope_type")} & {"dynamic", "longrope"}:
        raise ValueError("its rotation changes with the length of what is computed together.")
    if set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}:
        raise ValueError("some of its layers are of a kind that keeps more than keys and values.")
    ids = torch.arange(1, _TRIAL_TOKENS + 1, device=module.device) % text.vocab_size
    positions = torch.arange(_TRIAL_TOKENS, device=module.device)
    expected = _logits(module, ids, positions)
    module.set_attn_implementation(ATTENTION)
    trial = _Trial()
    with _during(trial):
        _logits(module, ids, positions)
    shapes = set(trial.key_shapes.values())
    if sorted(trial.key_shapes) != list(range(text.num_hidden_layers)) or len(shapes) != 1:
        raise ValueError(
            "its layers do not all go through the attention interface, with keys of equal shapes."
        )
    config = _config(text, *shapes.pop())
    found = _attended_logits(module, config, ids, positions)
    error = (found - expected).abs().max() / expected.abs().max()
    if not error <= _TOLERANCE[module.dtype]:
        raise ValueError("with attention as it is computed here, the logits of a trial differ.")
    return config


def _attended_logits(module: Any, config: ModelConfig, ids: Tensor, positions: Tensor) -> Tensor:
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


def _config(text: Any, num_kv_heads: int, head_dim: int) -> ModelConfig:
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
