"""Everybody can use the console: with a screen reader, in the dark, on a phone, by keyboard."""

from importlib.resources import files
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
PAGES = (
    "/",
    "/keys/shops",
    "/keys/shops?state=failing",
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


@pytest.mark.parametrize("path", PAGES)
async def test_axe_has_no_finding(visitor: Visitor, shops: str, path: str) -> None:
    await visitor.open(path.format(difference=shops))
    page = visitor.page
    await page.evaluate(AXE)
    assert await findings(page, {}) == []
    await page.emulate_media(color_scheme="dark")
    assert await findings(page, CONTRAST_ONLY) == []
    await page.set_viewport_size({"width": 400, "height": 800})
    assert await findings(page, NO_CONTRAST) == []
    assert await page.evaluate(OVERFLOW) == 0
    await page.set_viewport_size({"width": 3840, "height": 2160})
    assert await page.evaluate(OVERFLOW) == 0


async def test_a_dialog_has_no_finding(visitor: Visitor, shops: str) -> None:
    await visitor.open("/key/shops/reached")
    await visitor.page.get_by_role("button", name="Pause", exact=True).click()
    await expect(visitor.page.get_by_role("dialog")).to_be_visible()
    await visitor.page.evaluate(AXE)
    assert await findings(visitor.page, {}) == []


async def test_the_keyboard_is_enough_from_home_to_a_difference(
    visitor: Visitor, shops: str
) -> None:
    page, keyboard = visitor.page, visitor.page.keyboard
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


async def test_the_shortcuts_are_explained(visitor: Visitor) -> None:
    await visitor.page.keyboard.press("?")
    dialog = visitor.page.get_by_role("dialog", name="Shortcuts")
    await expect(dialog).to_contain_text("next and previous row")
    await visitor.page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)


async def test_the_focus_returns_after_a_dialog(visitor: Visitor, shops: str) -> None:
    await visitor.open("/key/shops/reached")
    button = visitor.page.get_by_role("button", name="Pause", exact=True)
    await button.focus()
    await visitor.page.keyboard.press("Enter")
    await expect(visitor.page.get_by_label("Reason")).to_be_focused()
    await visitor.page.keyboard.press("Escape")
    await expect(button).to_be_focused()
