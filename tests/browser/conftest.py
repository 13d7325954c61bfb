"""A real Chromium on a real console, or one skip message.

One browser, tab, server, daemon and console serve all tests of a process. Each test puts keys that
no other test uses.
"""

import inspect
import shutil
from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site, site

LIMIT_MS = 120_000.0
PROGRAMS = (  # Debian packages; the first has no window, so a page takes half the processor time
    "chromium-headless-shell",
    "chromium",
)
ABSENT = f"NO CHROMIUM: the tests of the console's page need the Debian package {PROGRAMS[0]}"
OPTIONS = (
    "--no-sandbox",  # CI runs as root
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--in-process-gpu",
    "--renderer-process-limit=1",
)
expect.set_options(timeout=LIMIT_MS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(ABSENT)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=OPTIONS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_site(
    chromium: Browser,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Site]:
    """Run a site. Tests must not stop or pause its processes."""
    folder = tmp_path_factory.mktemp("site")
    async with site(folder) as running:
        yield running


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_tab(chromium: Browser, shared_site: Site) -> AsyncIterator[Visitor]:
    """Open the console of the shared site once: each new tab would be another process."""
    async with Visitor.of(chromium, shared_site.console) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(shared_tab: Visitor) -> AsyncIterator[Visitor]:
    """Show the home page of the shared site; the page must stay without errors."""
    await shared_tab.open("/")
    shared_tab.requests.clear()
    shared_tab.troubles.clear()
    yield shared_tab
    shared_tab.check()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report all tests skipped without Chromium in one line, as skipped in this module."""
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and ABSENT in report.longrepr[2]:
        _, line = inspect.getsourcelines(pytest_runtest_makereport)
        report.longrepr = (__file__, line, f"Skipped: {ABSENT}")
    return report
