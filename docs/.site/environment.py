"""Makes the reference of all settings, ``docs/reference/environment.md``, from the code.

Run it when a setting is added or described anew; a test holds the file to it.
"""

import re
from dataclasses import fields
from pathlib import Path

from astrai_api.cli.setting_options import PANELS, described, option_name, shown_default
from astrai_api.settings import PREFIX, Settings
from astrai_engine import EngineConfig

PAGE = Path(__file__).parents[1] / "reference" / "environment.md"

_INTRODUCTION = """# Environment variables

One prefix, read in one file per package:
[settings.py](../../packages/astrai-api/src/astrai_api/settings.py) for the server,
[_env.py](../../packages/astrai-kernels/src/astrai_kernels/_env.py) for the kernels.

- Each is an option of [`astrai serve`](../guides/command-line.md), too, which beats the variable:
  `{variable}` is `{option}`.
- An empty variable counts as unset. A switch takes `1` and `0`, a list has commas between items.
- A bad value ends start-up with a sentence that names the variable. A variable that starts with
  `ASTRAI_` and is not below is a warning in the log.
- `astrai doctor` shows every setting with where its value came from.
"""

_SEE = {
    "Model": "[Models](../guides/models.md) says what can be served, "
    "[Tools and reasoning](../guides/tools.md) how models write calls.",
    "Memory and batching": "The words are those of the [glossary](../glossary.md). "
    "[An operator's day](../guides/operate.md) says when to change what.",
    "Watching it": "[An operator's day](../guides/operate.md) tells of logs and traces.",
    "Access": "[Security](../../SECURITY.md) has the whole picture, "
    "[The page](../guides/page.md) what browsers get to see.",
}
"""Where a panel's subject is explained."""

_IN_A_PROGRAM = """## In a program

`InferenceEngine` takes its settings as arguments and reads no environment. `EngineConfig` has the
same names in lower case and without the prefix: `{variable}` is `EngineConfig({field}=…)`.
It has all of the above but for what is the server's own:
{own}.

`ASTRAI_BACKEND`, `ASTRAI_NUM_THREADS` and `ASTRAI_CACHE_DIR` are read by astrai-kernels when a
backend is selected, so they also count for an engine inside a program; an argument or
`attn_backend(...)` beats them. The server checks their values at start-up.

*This page is made from the code by `docs/.site/environment.py`.*
"""


def environment_page() -> str:
    """The page as Markdown."""
    example = "max_queue"
    engine = {field.name for field in fields(EngineConfig)}
    own = [f"`{_variable(name)}`" for name in Settings.model_fields if name not in engine]
    texts = {
        "variable": _variable(example),
        "option": option_name(example),
        "field": example,
        "own": ",\n".join(own),
    }
    panels = [_panel(title, list(settings)) for title, settings in PANELS.items()]
    return "\n".join([_INTRODUCTION.format(**texts), *panels, _IN_A_PROGRAM.format(**texts)])


def _panel(title: str, settings: list[str]) -> str:
    see = [_SEE[title], ""] if title in _SEE else []
    rows = [f"| `{_variable(name)}` | {_default(name)} | {_meaning(name)} |" for name in settings]
    head = ["| variable | default | meaning |", "|---|---|---|"]
    return "\n".join([f"## {title}", "", *see, *head, *rows, ""])


def _variable(setting: str) -> str:
    return PREFIX + setting.upper()


def _default(setting: str) -> str:
    """A value as it would be written, or what an unset variable comes to in words."""
    value = Settings.model_fields[setting].default
    if value in (None, ()):
        return shown_default(setting)
    return f"`{int(value)}`" if isinstance(value, bool) else f"`{shown_default(setting)}`"


def _meaning(setting: str) -> str:
    """The description, with the names of other settings as variables."""

    def named(match: re.Match[str]) -> str:
        name = match[1]
        return f"`{_variable(name) if name in Settings.model_fields else name}`"

    return re.sub(r"``(.+?)``", named, described(setting)).removesuffix(".")


def main() -> None:
    """Write the page."""
    PAGE.write_text(environment_page(), "utf-8")


if __name__ == "__main__":
    main()
