"""Everybody can use the console: with a screen reader, in the dark, on a phone, by keyboard."""

from importlib.resources import files
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, ViewportSize, expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
PAGES = (
    "/",
    "/keys/shops",
    "/key/shops/reached-bad",
    "/key/shops/reached?{difference}",
    "/garbage",
    "/garbage/shops",
    "/members",
    "/buckets",
    "/buckets/shops",
    "/buckets/shops/reached",
)
FINDINGS = """
    async (options) => (await axe.run(options)).violations
        .flatMap(({id, nodes}) => nodes.map(({html}) => `${id}: ${html}`))
"""
CONTRAST_ONLY = {"runOnly": ["color-contrast"]}  # the width changes no colour, and
NO_CONTRAST = {"rules": {"color-contrast": {"enabled": False}}}  # colours change nothing else
DESK: ViewportSize = {"width": 3840, "height": 800}
PHONE: ViewportSize = {"width": 400, "height": 800}
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shops(shared_site: Site) -> str:
    """Put shops that succeed and fail; return the query of two revisions."""
    for image in ("nginx-1", "nginx-2"):
        await shared_site.natsctl.done("put", "shops", "reached", f"spec: {{image: {image}}}")
    await shared_site.natsctl.done("put", "shops", "reached-bad", "spec: {image: broken}")
    history = await shared_site.natsctl("history", "shops", "reached", "-o", "json")
    first, *_, last = sorted(entry["revision"] for entry in history.json)
    return f"from={first}&to={last}"


async def findings(page: Page, rules: dict[str, Any]) -> list[str]:
    """Return the findings of axe."""
    violations: list[str] = await page.evaluate(FINDINGS, rules)
    return violations


async def test_axe_has_no_finding(visitor: Visitor, shops: str) -> None:
    page = visitor.page
    try:
        for path in PAGES:
            await page.emulate_media(color_scheme="light")
            await page.set_viewport_size(DESK)
            await visitor.open(path.format(difference=shops))
            await page.evaluate(AXE)
            assert (path, await findings(page, {})) == (path, [])
            assert await page.evaluate(OVERFLOW) == 0
            await page.emulate_media(color_scheme="dark")
            await page.set_viewport_size(PHONE)
            assert (path, await findings(page, CONTRAST_ONLY)) == (path, [])
            assert (path, await findings(page, NO_CONTRAST)) == (path, [])
            assert await page.evaluate(OVERFLOW) == 0
    finally:
        await page.emulate_media(color_scheme="light")
        await page.set_viewport_size(DESK)


async def test_a_dialog_has_no_finding_and_returns_the_focus(visitor: Visitor, shops: str) -> None:
    page = visitor.page
    await visitor.open("/key/shops/reached")
    button = page.get_by_role("button", name="Pause", exact=True)
    await button.focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()
    await expect(page.get_by_label("Reason")).to_be_focused()
    await page.evaluate(AXE)
    assert await findings(page, {}) == []
    await page.keyboard.press("Escape")
    await expect(button).to_be_focused()


async def test_the_keyboard_is_enough_from_home_to_a_difference(
    visitor: Visitor, shops: str
) -> None:
    page, keyboard = visitor.page, visitor.page.keyboard
    await keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Shortcuts")
    await expect(dialog).to_contain_text("next and previous row")
    await keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await expect(page.get_by_role("link", name="shops").first).to_be_visible()
    await keyboard.press("j")
    await keyboard.press("Enter")
    await expect(page.get_by_role("table", name="Keys")).to_be_visible()
    await keyboard.press("/")
    await keyboard.type("reached")
    await expect(page.get_by_role("table", name="Keys").get_by_role("link")).to_have_count(2)
    await page.wait_for_url("**prefix=reached")
    await keyboard.press("Escape")
    await keyboard.press("j")
    await keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("reached")
    link = page.locator("li.revision").get_by_role("link").first
    await expect(link).to_be_visible()
    for _ in range(40):
        if await link.evaluate("(element) => element === document.activeElement"):
            break
        await keyboard.press("Tab")
    await keyboard.press("Enter")
    await expect(page.locator("table.diff")).to_be_visible()
