"""Gathers the documentation into one folder that a site generator can read: ``build/docs``.

Documents link to files of the repository, so that they work where the repository is read. On the
site each such file has a page of its own, and links lead there. The Python and the HTTP reference
are made from the code.
"""

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from posixpath import relpath

from http_fields import http_fields_page

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build" / "docs"

PACKAGES = ("astrai-kvcache", "astrai-kernels", "astrai-engine", "astrai-api")
WRITTEN_ELSEWHERE = {
    "README.md": "readme.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    **{f"packages/{name}/README.md": f"packages/{name}.md" for name in PACKAGES},
    **{f"packages/{name}/CHANGELOG.md": f"changelogs/{name}.md" for name in PACKAGES},
}
"""Documents outside ``docs/`` and the pages they become."""

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")
_LANGUAGES = {"py": "python", "cpp": "cpp", "h": "cpp", "toml": "toml", "yml": "yaml"}
_UNSEARCHED = "---\nsearch: {exclude: true}\n---\n\n"


def main() -> None:
    """Write all pages and copy all other files."""
    check_navigation()
    shutil.rmtree(OUT, ignore_errors=True)
    pages = {Path(path): page for path, page in WRITTEN_ELSEWHERE.items()}
    for path in sorted((ROOT / "docs").rglob("*")):
        name = path.relative_to(ROOT / "docs")
        if path.is_file() and not name.parts[0].startswith("."):
            pages[path.relative_to(ROOT)] = name.as_posix()
    made = {"reference/http-fields.md": http_fields_page()}
    for package in PACKAGES:
        module = package.replace("-", "_")
        made[f"reference/python/{module}.md"] = python_page(module)
    for target in sorted(linked_files(pages) - pages.keys()):
        visible = "/".join(part.lstrip(".") for part in target.parts)  # dots hide folders
        pages[target] = f"source/{visible}.md"
        made[pages[target]] = source_page(target)
    for path, page in pages.items():
        if page in made:
            write(page, made[page])
        elif path.suffix == ".md":
            write(page, with_links(path, page, pages))
        else:
            (OUT / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, OUT / page)
    for page in made.keys() - set(pages.values()):
        write(page, made[page])


def check_navigation() -> None:
    """End with a sentence if a document is not in the navigation; decisions have an index."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = path.relative_to(ROOT / "docs").as_posix()
        if not name.startswith("decisions/0") and f" {name}\n" not in navigation:
            sys.exit(f"docs/{name} is not in the navigation of mkdocs.yml.")


def write(page: str, content: str) -> None:
    """Write one file of the folder."""
    path = OUT / page
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, "utf-8")


def with_links(path: Path, page: str, pages: dict[Path, str]) -> str:
    """A document whose links lead to pages."""

    def lead(match: re.Match[str]) -> str:
        target = resolve(path, match[2])
        if target not in pages:
            return match[0]
        uri = relpath(pages[target], Path(page).parent.as_posix())
        return f"{match[1]}{uri}{match[3] or ''})"

    text = (ROOT / path).read_text("utf-8")
    pieces = []
    at = 0
    for fence in _FENCE.finditer(text):
        pieces += [_LINK.sub(lead, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, _LINK.sub(lead, text[at:])])


def linked_files(documents: dict[Path, str]) -> set[Path]:
    """Files and folders of the repository that documents link to, below its root."""
    found: set[Path] = set()
    for path in documents:
        if path.suffix == ".md":
            text = _FENCE.sub("", (ROOT / path).read_text("utf-8"))
            for match in _LINK.finditer(text):
                target = resolve(path, match[2])
                if target is not None:
                    found.add(target)
    return found


def resolve(document: Path, target: str) -> Path | None:
    """What a link of a document leads to, below the root; None if it is not a file of ours."""
    if ":" in target:
        return None
    path = (ROOT / document.parent / target).resolve()
    return path.relative_to(ROOT) if path.exists() else None


def source_page(path: Path) -> str:
    """A page that shows a file, or lists a folder."""
    title = f"# `{path.as_posix()}`\n\n"
    full = ROOT / path
    if full.is_dir():
        names = sorted(p.name for p in full.iterdir() if not p.name.startswith(("_", ".")))
        return _UNSEARCHED + title + "".join(f"- `{name}`\n" for name in names)
    language = _LANGUAGES.get(path.suffix.lstrip("."), "text")
    return f"{_UNSEARCHED}{title}~~~~{language}\n{full.read_text('utf-8')}\n~~~~\n"


def python_page(module: str) -> str:
    """The public names of a package, in the order of its ``__all__``."""
    entries = "\n\n".join(f"::: {name}" for name in public_names(module))
    return f"# {module}\n\n{entries}\n"


def public_names(module: str) -> Iterator[str]:
    """Where what ``__all__`` names is defined; modules and constants as they are named."""
    package = importlib.import_module(module)
    for name in package.__all__:
        if name == "app":  # built when it is asked for
            continue
        thing = getattr(package, name)
        home = getattr(thing, "__module__", "")
        is_ours = home.startswith(module) and getattr(thing, "__name__", None) == name
        yield f"{home}.{name}" if is_ours else f"{module}.{name}"


if __name__ == "__main__":
    main()
