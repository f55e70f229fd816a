"""Checks that a built site shows itself without a network: nothing it loads is elsewhere.

Links that a reader may follow are no assets.
"""

import re
import sys
from pathlib import Path

_ASSETS = (
    re.compile(r"<(?:script|img|iframe|source|video|audio)\b[^>]*\ssrc=[\"']?(?:https?:)?//[^>]*>"),
    re.compile(r"<link\b[^>]*\shref=[\"']?(?:https?:)?//[^>]*>"),
    re.compile(r"url\([\"']?(?:https?:)?//[^)]*\)|@import\s+[\"'](?:https?:)?//[^;]*"),
)
_NO_ASSET = re.compile(r"rel=[\"']?canonical")


def foreign_assets(site: Path) -> list[str]:
    """What the pages and style sheets of a site load from elsewhere."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text("utf-8")
            loaded = [match[0] for pattern in _ASSETS for match in pattern.finditer(text)]
            name = path.relative_to(site)
            found += [f"{name}: {asset}" for asset in loaded if not _NO_ASSET.search(asset)]
    return found


def main() -> None:
    """Check the site of the first argument."""
    found = foreign_assets(Path(sys.argv[1]))
    if found:
        sys.exit("\n".join(["The site loads from elsewhere:", *found]))


if __name__ == "__main__":
    main()
