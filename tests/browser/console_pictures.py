"""Pictures of the console for the documentation: `python -m tests.browser.console_pictures`. Look at them."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from retrysafe import RetrySafe
from retrysafe.console.request_log import LogFile
from retrysafe.testing.builders import claim
from tests.browser.test_console import DESKTOP, PHONE, serve, visit
from tests.console.conftest import fill
from tests.console.requests_seen import make_requests
from tests.servers.chromium import find_chromium

FOLDER = Path(__file__).parents[2] / "docs" / "images" / "console"
EVERY_WAY = ("now", "key")
"""Kept at both widths, light and dark; the others at one."""
SIZES: dict[str, Any] = {"desktop": DESKTOP, "phone": PHONE}


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = find_chromium()
    with tempfile.TemporaryDirectory() as folder, RetrySafe(f"sqlite:///{folder}/shop.db", namespace="shop") as safe:
        safe.migrate()
        long_ago = time.time() - 15 * 60
        world = fill(safe, long_ago)
        for number in range(6):
            safe.store.execute(
                claim(
                    f"order-7{number}",
                    scope="acme",
                    target="POST /payments",
                    namespace="shop",
                    now=long_ago + 60 * number,
                )
            )

        @safe.once("n:{n}")
        def count(n: int) -> int:
            return n

        for number in range(40):
            count(number % 9)
        log = LogFile(Path(folder) / "requests.jsonl")
        for seen in make_requests(time.time() - 60):
            log.append(seen)
        pages = {
            "now": "/",
            "key": f"/keys/{world.uncertain.id.hex()}",
            "keys": "/keys?state=uncertain",
            "operations": "/operations",
            "requests": "/requests",
        }
        with sync_playwright() as playwright, serve(safe, request_log=log.path) as served:
            env = dict(found.env)
            browser = playwright.chromium.launch(executable_path=found.path, env=env, args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                for size, viewport in SIZES.items():
                    with visit(browser, served, scheme=scheme, size=viewport) as page:
                        for name, path in pages.items():
                            if name not in EVERY_WAY and (size, scheme) != ("desktop", "light"):
                                continue
                            page.goto(path)
                            page.screenshot(path=FOLDER / f"{name}-{size}-{scheme}.png", full_page=True)
            browser.close()


if __name__ == "__main__":
    main()
