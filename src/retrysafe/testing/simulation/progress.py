"""What of a campaign is done, in a file: so a long campaign is played in pieces, and counts as one.

All pieces are of the same code. A campaign whose code has changed since is not one proof, and is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from retrysafe.testing.simulation.tally import Tally

PACKAGE = Path(__file__).parents[2]


@dataclass(slots=True)
class ScenarioProgress:
    """`done` are the seeds at which chunks begin that were played to their end."""

    first: int
    done: set[int] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    """How long it took on the wall, with everything that ran beside it."""


@dataclass(slots=True)
class Progress:
    """A campaign of several scenarios. `code` names the code that is played, `commit` says it for a person."""

    code: str
    commit: str = ""
    scenarios: dict[str, ScenarioProgress] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """As a whole or not at all."""
        new = path.with_name(f"{path.name}.new")
        new.write_text(json.dumps(self.to_plain(), indent=1), encoding="utf-8")
        new.replace(path)

    def to_plain(self) -> dict[str, Any]:
        plain = {
            name: {
                "first": each.first,
                "histories": each.tally.histories,
                "violations": len(each.tally.failing),
                "seconds": each.seconds,
                "done": sorted(each.done),
                "tally": {one.name: getattr(each.tally, one.name) for one in fields(each.tally)},
            }
            for name, each in self.scenarios.items()
        }
        return {"code": self.code, "commit": self.commit, "scenarios": plain}


def open_progress(path: Path | None, seeds: Mapping[str, range], commit: str = "") -> Progress:
    """The progress of a campaign, new if there is no file. Raises ValueError if the file is of another one."""
    fresh = Progress(identify_code(seeds), commit, {name: ScenarioProgress(each.start) for name, each in seeds.items()})
    if path is None or not path.exists():
        return fresh
    plain = json.loads(path.read_text(encoding="utf-8"))
    if "code" not in plain:
        raise ValueError(f"{path} is of a campaign of an older release: give another file")
    found = read_progress(plain)
    if found.code != fresh.code:
        raise ValueError(
            f"{path} is of a campaign of other code (commit {found.commit or 'unknown'}): check that out to go on with "
            "it, or give another file"
        )
    for name, each in fresh.scenarios.items():
        known = found.scenarios.setdefault(name, each)
        if known.first != each.first:
            raise ValueError(
                f"{path} is of a campaign of {name} from seed {known.first}, not {each.first}: resume it with the same "
                "first seed, or give another file"
            )
    return found


def read_progress(plain: dict[str, Any]) -> Progress:
    progress = Progress(plain["code"], plain["commit"])
    for name, each in plain["scenarios"].items():
        tally = dict(each["tally"])
        for counted in ("kinds", "faults", "circumstances"):
            tally[counted] = Counter(tally[counted])
        tally["failing"] = {int(seed): problem for seed, problem in tally["failing"].items()}
        progress.scenarios[name] = ScenarioProgress(each["first"], set(each["done"]), Tally(**tally), each["seconds"])
    return progress


def identify_code(scenarios: Mapping[str, range]) -> str:
    """A digest of retrysafe's source, and of the scenarios' modules that are not part of it: what the history of a seed
    depends on."""
    files = sorted(PACKAGE.rglob("*.py"))
    modules = sorted({name.partition(":")[0] for name in scenarios if not name.startswith("retrysafe.")})
    files += [Path(found) for found in (import_module(name).__file__ for name in modules) if found]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
