"""The changelog is made of fragments: changelog.d/<number or name>.<kind>.md, one per change, written for users.

python tools/fragments.py --check      every fragment has a known kind and says something
python tools/fragments.py 0.2.0        gather them into CHANGELOG.md under that version, and remove them
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "changelog.d"
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "security": "Security", "removed": "Removed"}


def fragments() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(FOLDER.glob("*.md")):
        kind = path.name.split(".")[-2]
        if kind not in KINDS:
            sys.exit(f"changelog.d/{path.name}: the kind {kind!r} is not one of {', '.join(KINDS)}; rename the file")
        if not path.read_text().strip():
            sys.exit(f"changelog.d/{path.name} is empty: say what changed for a user")
        found[kind].append(path)
    return found


def gather(version: str) -> None:
    parts = [f"## {version}\n"]
    for kind, paths in fragments().items():
        if paths:
            parts.append(f"### {KINDS[kind]}\n")
            parts.extend(f"- {path.read_text().strip()}" for path in paths)
            parts.append("")
    changelog = ROOT / "CHANGELOG.md"
    head, _, rest = changelog.read_text().partition("\n## ")
    changelog.write_text(head + "\n" + "\n".join(parts) + ("\n## " + rest if rest else ""))
    for paths in fragments().values():
        for path in paths:
            path.unlink()


if __name__ == "__main__":
    if "--check" in sys.argv:
        fragments()
    else:
        gather(sys.argv[1])
