"""A user who looks at the console in a browser."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Browser, ConsoleMessage, Dialog, Page, Request

from tests.support.cli.console import Console

LIMIT_MS = 120_000.0
DRAWN = "#main > :last-child:not(.loading), .notice[data-kind=bad]"
FAILED_LOAD = "Failed to load resource: the server responded with a status"


class Visitor:
    """A page of the console, everything that it requests, and everything that goes wrong there.

    Attributes:
        page: the page.
        requests: the URLs of all requests.
        troubles: errors of scripts, errors that the browser logs (also of the policy), and dialogs.
    """

    def __init__(self, page: Page, console: Console) -> None:
        self.page = page
        self.console = console
        self.requests: list[str] = []
        self.troubles: list[str] = []
        page.set_default_timeout(LIMIT_MS)
        page.on("request", self._note_request)
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", self._note_dialog)

    @classmethod
    @asynccontextmanager
    async def of(
        cls, browser: Browser, console: Console, **context: Any
    ) -> AsyncIterator["Visitor"]:
        """Open a context of the browser, and sign in."""
        async with await browser.new_context(**context) as opened:
            visitor = cls(await opened.new_page(), console)
            await visitor.page.goto(console.url)
            await visitor.page.get_by_role("heading", level=1).wait_for()
            yield visitor

    async def open(self, path: str) -> None:
        """Open a path of the console, and wait until its view or an error is drawn."""
        await self.page.goto(self.console.base + path)
        await self.page.locator(DRAWN).first.wait_for()

    def check(self) -> None:
        """Fail if anything went wrong, or was requested from elsewhere."""
        assert not self.troubles, self.troubles
        own = (f"{self.console.base}/", f"blob:{self.console.base}/")
        elsewhere = [url for url in self.requests if not url.startswith(own)]
        assert not elsewhere, elsewhere

    async def settle(self) -> None:
        """Wait until the browser has drawn the present state."""
        await self.page.evaluate("() => new Promise((done) => setTimeout(done))")
        await self.page.evaluate("() => new Promise(requestAnimationFrame)")

    def expect_status(self, *statuses: int) -> None:
        """Accept what the browser logs about answers with these statuses."""
        texts = tuple(f"{FAILED_LOAD} of {status} " for status in statuses)
        self.troubles = [text for text in self.troubles if not text.startswith(texts)]

    def expect_lost_connections(self) -> None:
        """Accept what the browser logs about requests without an answer."""
        lost = "Failed to load resource: net::ERR_"
        self.troubles = [text for text in self.troubles if not text.startswith(lost)]

    def count(self, part: str) -> int:
        """Return how many requests had this part in their URL."""
        return sum(part in url for url in self.requests)

    def _note_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.troubles.append(f"{message.text} {message.location['url']}")

    async def _note_dialog(self, dialog: Dialog) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        await dialog.dismiss()
