"""Write docs/reference/errors.md from the classes themselves. `--check` fails if the page is stale."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from retrysafe import errors

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "errors.md"

HEAD = """# Errors

Everything retrysafe raises is a `RetrySafeError`. This page is generated from `src/retrysafe/errors.py` by `make docs`.

Each class says whose it is (`blame`), whether the same call may succeed later (`retryable`), and what an HTTP layer
answers (`status`).

| error | blame | retryable | HTTP | anchor |
|---|---|---|---|---|
"""


def page() -> str:
    classes = [
        each
        for each in vars(errors).values()
        if inspect.isclass(each) and issubclass(each, errors.RetrySafeError) and each.__module__ == errors.__name__
    ]
    rows = [
        f'| <a id="{each.anchor}"></a>`{each.__name__}` | {each.blame} | {"yes" if each.retryable else "no"} '
        f"| {each.status} | `{each.anchor}` |"
        for each in classes
    ]
    tree = inspect.getdoc(errors) or ""
    return HEAD + "\n".join(rows) + "\n\n```\n" + tree + "\n```\n"


def main() -> None:
    text = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit(f"docs/reference/{PAGE.name} is stale: run `make docs`")
        return
    PAGE.write_text(text)
    print(f"wrote docs/reference/{PAGE.name}")


if __name__ == "__main__":
    main()
