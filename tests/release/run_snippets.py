"""Runs the Python snippets of a document as programs, with nothing but the standard library.

For environments that hold one package alone, as its users install it: `nox -s build`.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Run the snippets of the document named by the first argument."""
    document = Path(sys.argv[1])
    text = document.read_text(encoding="utf-8")
    num_run = 0
    for match in _FENCE.finditer(text):
        if match[1] != "python" or "localhost:8000" in match[2]:  # those need a server
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(match[2], str(document), "exec"), {"__name__": "__main__"})
        after = _FENCE.match(text, match.end() + 2)
        if after and after[1] == "text" and printed.getvalue() != after[2]:
            sys.exit(f"{document} promises {after[2]!r}, but it is {printed.getvalue()!r}.")
        num_run += 1
    if not num_run:
        sys.exit(f"{document} has no snippet to run.")
    print(f"{document.parent.name}: {num_run} snippets run")


if __name__ == "__main__":
    main()
