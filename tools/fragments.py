"""Make the changelog from fragments: changelog.d/<number or name>.<kind>.md, one per change, written for users.

python tools/fragments.py --check      check that every fragment has a known kind and is not empty
python tools/fragments.py 0.2.0        move them into CHANGELOG.md under that version
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION = re.compile(r"\d+\.\d+\.\d+\w*")
FOLDER = ROOT / "changelog.d"
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "security": "Security", "removed": "Removed"}


def read_fragments() -> dict[str, list[Path]]:
    """The files of each kind. Exits with an error if one has no known kind or is empty."""
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(FOLDER.glob("*.md")):
        kind = path.name.split(".")[-2]
        if kind not in KINDS:
            sys.exit(f"changelog.d/{path.name}: the kind {kind!r} is not one of {', '.join(KINDS)}; rename the file")
        if not path.read_text().strip():
            sys.exit(f"changelog.d/{path.name} is empty: say what changed for a user")
        found[kind].append(path)
    return found


def move_to_changelog(version: str) -> None:
    parts = [f"## {version}\n"]
    for kind, paths in read_fragments().items():
        if paths:
            parts.append(f"### {KINDS[kind]}\n")
            parts.extend(f"- {path.read_text().strip()}" for path in paths)
            parts.append("")
    changelog = ROOT / "CHANGELOG.md"
    head, _, rest = changelog.read_text().partition("\n## ")
    changelog.write_text(head + "\n" + "\n".join(parts) + ("\n## " + rest if rest else ""))
    for paths in read_fragments().values():
        for path in paths:
            path.unlink()


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        read_fragments()
    elif len(arguments) == 1 and VERSION.fullmatch(arguments[0]):
        move_to_changelog(arguments[0])
    else:
        sys.exit(
            f"{' '.join(arguments) or 'nothing'} is no version such as 0.2.0, and not --check; nothing was changed"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
