"""The worker of the recipe, which dies once: after the provider has done what it was asked, before anybody knows.

python -m tests.recipes.run_worker_step FOLDER LEASE
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from examples.recipes.worker_step import Provider, Shop, work


class Deadly(Provider):
    def move(self, key: str, who: str, cents: int) -> str:
        made = super().move(key, who, cents)
        order = self.path.with_name("die")
        if order.exists():
            order.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return made


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    work(Shop(folder, Deadly(folder), lease=float(sys.argv[2])))
