"""Puts the parts of an engine together: settings in, everything but the thread out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import torch

from astrai_engine.cache_tiers import CacheTiers
from astrai_engine.chunk_budget import ChunkBudget
from astrai_engine.config import EngineConfig, EngineInfo, SpeculationMode
from astrai_engine.constraint import GrammarCompiler, TokenMasks
from astrai_engine.decode_graphs import CudaRecorder
from astrai_engine.executor import LanguageModel, ModelExecutor
from astrai_engine.loading import LoadedModel, ModelSource, load_model, resolve_source
from astrai_engine.loading.identity import model_identity
from astrai_engine.loading.loader import WeightFormat, fetch
from astrai_engine.parallel.crew import Crew
from astrai_engine.parallel.leading_model import LeadingModel
from astrai_engine.parallel.orders import LoadOrder, ServeOrder
from astrai_engine.parallel.ranks import ProcessRanks
from astrai_engine.placement import (
    choose_device,
    choose_dtype,
    choose_kv_dtype,
    choose_precision,
    rank_devices,
    use_threads,
)
from astrai_engine.prompt import PromptEncoder
from astrai_engine.sampling import Sampler
from astrai_engine.scheduler import Scheduler
from astrai_engine.sizing import Sizes, choose_sizes, free_memory
from astrai_engine.speculation import FREE, Speculation
from astrai_engine.tokenizer import Tokenizer
from astrai_engine.warmup import measure_step_cost, record_decode, warm_up
from astrai_engine.workspace import InferenceWorkspace
from astrai_kernels import AttentionShape, select_backend
from astrai_kvcache import PagePool


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of.

    Attributes:
        info: the resolved settings.
        device: where the model runs.
        tokenizer: the model's.
        prompts: turns requests into token ids.
        grammars: compiles what generated text has to look like.
        eos_token_ids: tokens at which the model ends.
        pool: the K/V cache.
        tiers: what keeps pages that it has no more room for.
        scheduler: decides what runs.
        executor: runs it; warm already.
        position_offset: what the model adds to the positions of a request, by the tokens it may
            grow to.
        crew: the processes that run the model together with this one; None where it is alone.
    """

    info: EngineInfo
    device: torch.device
    tokenizer: Tokenizer
    prompts: PromptEncoder
    grammars: GrammarCompiler
    eos_token_ids: frozenset[int]
    pool: PagePool
    tiers: CacheTiers
    scheduler: Scheduler
    executor: ModelExecutor
    position_offset: Callable[[int], int]
    crew: Crew | None


def assemble(config: EngineConfig) -> EngineParts:
    """Load the model and build everything around it.

    Raises:
        ConfigurationError: the model can't be found or loaded, or a setting is wrong.
    """
    form = _form(config)
    source = resolve_source(config.model, revision=config.revision)
    if config.tensor_parallel_size == 1:
        return _assemble(config, source, form, None)
    source = fetch(source)
    crew = _start_crew(config, source, form)
    try:
        return _assemble(config, source, form, crew)
    except BaseException:
        crew.close()
        raise


def _form(config: EngineConfig) -> WeightFormat:
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    if config.num_threads is not None:
        use_threads(config.num_threads, device)
    return WeightFormat(
        device=device,
        dtype=dtype,
        precision=choose_precision(config.quantization, device, dtype),
        activation_bits=8 if config.activations == "int8" else 16,
    )


def _start_crew(config: EngineConfig, source: ModelSource, form: WeightFormat) -> Crew:
    """Let all other ranks begin to load their shares."""
    size = config.tensor_parallel_size
    orders = [
        LoadOrder(
            rank=rank,
            size=size,
            path=Path(source.location),
            form=replace(form, device=device),
            num_threads=config.num_threads,
            num_torch_threads=torch.get_num_threads(),
        )
        for rank, device in enumerate(rank_devices(form.device, size))
    ]
    return Crew(orders[1:], ProcessRanks(0, size))


def _assemble(
    config: EngineConfig, source: ModelSource, form: WeightFormat, crew: Crew | None
) -> EngineParts:
    device, dtype = form.device, form.dtype
    loaded = load_model(
        source,
        device=device,
        dtype=dtype,
        precision=form.precision,
        activation_bits=form.activation_bits,
        chat_template=config.chat_template,
        group=None if crew is None else crew.group,
    )
    kv_dtype = choose_kv_dtype(config.kv_dtype, device, dtype, loaded.precision)
    sizes = choose_sizes(
        config, loaded.config, device=device, kv_dtype=kv_dtype, free_bytes=_free(device, crew)
    )
    loaded.model.fit_context(sizes.max_seq_len)
    tiers = CacheTiers(config)
    pool = _pool(config, loaded, sizes, device, kv_dtype, tiers)
    model: LanguageModel = loaded.model
    if crew is not None:
        crew.connect(_serve_order(config, sizes, pool), device)
        model = LeadingModel(loaded.model, crew, config.page_size)
    workspace = InferenceWorkspace(
        config.max_batch_size, sizes.max_step_tokens, sizes.max_seq_len, device
    )
    eos_token_ids = loaded.defaults.eos_token_ids
    vocab_size = loaded.config.vocab_size
    executor = ModelExecutor(model, pool, workspace, Sampler(eos_token_ids), TokenMasks(vocab_size))
    no_graphs = executor.load_kernels(_attention_shape(config, loaded, device, dtype, kv_dtype))
    warm_up(executor, pool)
    if device.type == "cuda" and config.cuda_graphs and no_graphs is None and crew is None:
        record_decode(executor, CudaRecorder(device))
    return EngineParts(
        info=_info(config, loaded, sizes, device, dtype, kv_dtype),
        device=device,
        tokenizer=loaded.tokenizer,
        prompts=PromptEncoder(
            loaded.tokenizer,
            loaded.chat_template,
            vocab_size=vocab_size,
            max_seq_len=sizes.max_seq_len,
        ),
        grammars=GrammarCompiler(loaded.tokenizer, eos_token_ids, vocab_size),
        eos_token_ids=eos_token_ids,
        pool=pool,
        tiers=tiers,
        scheduler=Scheduler(
            pool,
            max_batch_size=config.max_batch_size,
            max_step_tokens=sizes.max_step_tokens,
            chunk_budget=None if config.max_step_tokens else ChunkBudget(sizes.max_step_tokens),
            speculation=_speculation(config.speculation, executor, pool),
        ),
        executor=executor,
        position_offset=loaded.model.position_offset,
        crew=crew,
    )


def _free(device: torch.device, crew: Crew | None) -> int:
    """Memory that is left for one rank's part of the pool."""
    own = free_memory(device)
    if crew is None:
        return own
    least = min(own, crew.wait_loaded())
    return least // crew.group.size if device.type == "cpu" else least  # CPUs share theirs


def _serve_order(config: EngineConfig, sizes: Sizes, pool: PagePool) -> ServeOrder:
    return ServeOrder(
        max_seq_len=sizes.max_seq_len,
        max_batch_size=config.max_batch_size,
        n_tokens=pool.n_tokens,
        page_size=config.page_size,
        kv_dtype=pool.dtype,
    )


def _attention_shape(
    config: EngineConfig,
    loaded: LoadedModel,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> AttentionShape:
    return AttentionShape(
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        num_heads=loaded.config.num_heads,
        num_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        max_batch_size=config.max_batch_size,
    )


def _pool(
    config: EngineConfig,
    loaded: LoadedModel,
    sizes: Sizes,
    device: torch.device,
    kv_dtype: torch.dtype,
    tiers: CacheTiers,
) -> PagePool:
    kept = tiers.as_list()
    return PagePool(
        n_layers=loaded.config.num_layers,
        n_kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        max_batch_size=config.max_batch_size,
        max_seq_len=sizes.max_seq_len,
        device=device,
        dtype=kv_dtype,
        page_size=config.page_size,
        n_tokens=sizes.n_tokens,
        prefix_cache=config.prefix_cache,
        tiers=kept,
        fingerprint=_fingerprint(config, loaded, device) if kept else "",
    )


def _fingerprint(config: EngineConfig, loaded: LoadedModel, device: torch.device) -> str:
    """All that the K/V of a token depend on besides the tokens before it and their own form."""
    versions = [version(name) for name in ("astrai-engine", "astrai-kernels")]
    arithmetic = (str(loaded.model.dtype), loaded.precision, config.activations, device.type)
    context = max(config.max_seq_len or 0, loaded.config.default_seq_len)  # a longer one stretches
    return " ".join([model_identity(loaded.path), str(context), *arithmetic, *versions])


def _speculation(
    mode: SpeculationMode, executor: ModelExecutor, pool: PagePool
) -> Speculation | None:
    match mode:
        case "off":
            return None
        case "prompt-lookup":
            return Speculation(FREE)
        case "auto":
            return Speculation(measure_step_cost(executor, pool))


def _info(
    config: EngineConfig,
    loaded: LoadedModel,
    sizes: Sizes,
    device: torch.device,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
) -> EngineInfo:
    return EngineInfo(
        model=loaded.name,
        device=str(device),
        tensor_parallel_size=config.tensor_parallel_size,
        dtype=str(dtype).removeprefix("torch."),
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        quantization=loaded.precision,
        backend=select_backend(device).name,
        max_seq_len=sizes.max_seq_len,
        vocab_size=loaded.config.vocab_size,
        n_tokens=sizes.n_tokens,
        page_size=config.page_size,
        max_batch_size=config.max_batch_size,
        max_step_tokens=sizes.max_step_tokens,
        speculation=config.speculation,
        chat_template=loaded.chat_template.tool_source if loaded.chat_template else None,
        sampling_defaults=loaded.defaults.sampling if config.generation_config == "auto" else {},
    )
