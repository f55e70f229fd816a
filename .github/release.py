"""The checks and the notes of a release, for ``.github/workflows/release.yml``.

    python .github/release.py check astrai-kvcache-v0.1.0
    python .github/release.py notes astrai-kvcache-v0.1.0

Run from the root of the repository; needs nothing but Python and git.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple


class ReleaseError(Exception):
    """The tag can't be released as it stands."""


class Release(NamedTuple):
    """What a tag names."""

    package: str
    version: str

    @property
    def folder(self) -> Path:
        """The package's folder in the repository."""
        return Path("packages", self.package)


def parse_tag(tag: str) -> Release:
    """Split ``astrai-<package>-v<version>``.

    Raises:
        ReleaseError: the tag has another form, or there is no such package.
    """
    match = re.fullmatch(r"(astrai-[a-z]+)-v(\d\S*)", tag)
    if match is None:
        raise ReleaseError(f"The tag {tag} is not of the form astrai-<package>-v<version>.")
    release = Release(*match.groups())
    if not release.folder.is_dir():
        raise ReleaseError(f"The tag {tag} names a package that is not in packages/.")
    return release


def check(release: Release) -> None:
    """Compare a tag with the package's metadata and changelog.

    Raises:
        ReleaseError: they name different versions.
    """
    with (release.folder / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    if version != release.version:
        raise ReleaseError(
            f"The tag says version {release.version} of {release.package}, but its pyproject.toml "
            f"says {version}; make them equal and tag again."
        )
    if not changelog_entry(release):
        raise ReleaseError(
            f"{release.folder}/CHANGELOG.md has no entry for {version}; write one and tag again."
        )


def changelog_entry(release: Release) -> str:
    """The text under the version's heading in the changelog; empty if there is none."""
    text = (release.folder / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## \[?{re.escape(release.version)}\]?(?: .*)?$"
    match = re.search(rf"{heading}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return match[1].strip() if match else ""


def notes(release: Release) -> str:
    """The changelog entry, then the commits that touched the package since its last release."""
    tag = f"{release.package}-v{release.version}"
    earlier = _git(
        "tag", "--list", f"{release.package}-v*", "--merged", tag, "--sort=-creatordate"
    ).split()
    previous = next((name for name in earlier if name != tag), None)
    commits = _git(
        "log", "--format=- %s (%h)", f"{previous}..{tag}" if previous else tag, "--",
        str(release.folder),
    )  # fmt: skip
    return f"{changelog_entry(release)}\n\n### Commits\n\n{commits}"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Checks and notes of a release.")
    parser.add_argument("command", choices=("check", "notes"))
    parser.add_argument("tag")
    options = parser.parse_args()
    try:
        release = parse_tag(options.tag)
        if options.command == "check":
            check(release)
            module = release.package.replace("-", "_")
            sys.stdout.write(f"package={release.package}\nmodule={module}\n")
        else:
            sys.stdout.write(notes(release))
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
