"""The harness itself: the processes are of the releases they are said to be, and they die when they are told to."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.releases.places import World, place_for
from tests.releases.processes import HERE, OLD, Failed, Release

pytestmark = pytest.mark.xdist_group("releases")


def test_each_process_runs_its_own_release(old: Release, new: Release) -> None:
    assert Path(old.steady.file).is_relative_to(old.source)
    assert Path(new.steady.file).is_relative_to(new.source)
    assert old.source != new.source


def test_the_kept_release_is_only_the_package() -> None:
    import tarfile

    with tarfile.open(HERE / f"{OLD}.tar.xz") as kept:
        assert {name.partition("/")[0] for name in kept.getnames()} == {"retrysafe"}


@pytest.mark.store("sqlite")
def test_a_command_that_fails_in_the_child_fails_the_test(
    request: pytest.FixtureRequest, tmp_path: Path, old: Release
) -> None:
    with pytest.raises(Failed, match="KeyError"):
        place_for(request, tmp_path, "sqlite").at(old)("nothing of the kind")


@pytest.mark.store("sqlite")
def test_a_mortal_process_dies_where_it_is_told(
    request: pytest.FixtureRequest, tmp_path: Path, old: Release, new: Release
) -> None:
    world = World(place_for(request, tmp_path, "sqlite"), old, new)
    for side in (world.old, world.new):
        died = side.dying("call", kind="function", key=f"k-{side.release}", cents=1, die="pay:after")
        assert died == {"signal": signal.SIGKILL, "said": None}
        lived = side.dying("call", kind="function", key=f"l-{side.release}", cents=1)
        assert lived["signal"] == 0
        assert "l-" in lived["said"]["ok"]["result"]
    assert sum(world.counted("pay").values()) == 4
    world.close()
