"""Work of a size that is known, for the counter of instructions. It imports little: under the counter all is slow."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.callgrind import measure


async def sum_up(size: int) -> None:
    async def run(pieces: int) -> None:
        for _ in range(pieces):
            sum(number * number for number in range(size))

    await measure(run, 50)


if __name__ == "__main__":
    asyncio.run(sum_up(int(sys.argv[1])))
