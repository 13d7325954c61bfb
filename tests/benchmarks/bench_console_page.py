"""The time until Chromium shows the first keys of a large bucket in the console."""

import shutil
import tempfile
from pathlib import Path

from playwright.async_api import Browser, async_playwright

from tests.benchmarks.support.dataset import BUCKET
from tests.benchmarks.support.measured_server import Sizes, filled
from tests.benchmarks.support.results import Row, limited, shown
from tests.support.cli.browser import Visitor
from tests.support.cli.console import Console, console
from tests.support.cli.natsctl_command import Natsctl

FIRST_PAGE_MS = 500.0
SMALL = "small"
FIRST_ROW = "() => document.querySelector('tbody a') && performance.now()"


async def run(sizes: Sizes) -> list[Row]:
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        return []
    first, large, small = [], [], []
    async with filled(sizes.keys) as server, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        with tempfile.TemporaryDirectory() as folder:
            natsctl = Natsctl(Path(folder), server.url)
            await natsctl.done("put", SMALL, "key", "{}", "--create-bucket")
            for _ in range(sizes.rounds):
                async with console(natsctl) as running:
                    first.append(await _first_row_ms(browser, running, BUCKET))
                    large.append(await _first_row_ms(browser, running, BUCKET))
                    small.append(await _first_row_ms(browser, running, SMALL))
        await browser.close()
    return [
        limited(
            f"console: first rows of {sizes.keys:,} keys in Chromium",
            "ms",
            first,
            "of one key",
            small,
            at_most=FIRST_PAGE_MS,
        ),
        shown("  by a console that has read their names", "ms", large),
    ]


async def _first_row_ms(browser: Browser, running: Console, bucket: str) -> float:
    """Return the time from the start of a navigation to the first row in the document."""
    async with Visitor.of(browser, running) as visitor:
        await visitor.page.goto(f"{running.base}/buckets/{bucket}", wait_until="commit")
        row = await visitor.page.wait_for_function(FIRST_ROW)
        taken_ms: float = await row.json_value()
        return taken_ms
