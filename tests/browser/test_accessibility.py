"""Everybody can use the console: with a screen reader, in the dark, on a phone, by keyboard."""

from importlib.resources import files
from typing import Any

import pytest
from playwright.async_api import Browser, expect

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
        .filter(({impact}) => impact === "serious" || impact === "critical")
        .flatMap(({id, nodes}) => nodes.map(({html}) => `${id}: ${html}`))
"""
CONTRAST_ONLY = {"runOnly": ["color-contrast"]}  # the width changes no colour, and
NO_CONTRAST = {"rules": {"color-contrast": {"enabled": False}}}  # colours change nothing else
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def difference(site: Site) -> str:
    """Put shops that succeed and fail; return the query of two revisions."""
    for image in ("nginx-1", "nginx-2"):
        await site.natsctl.done("put", "shops", "reached", f"spec: {{image: {image}}}")
    await site.natsctl.done("put", "shops", "reached-bad", "spec: {image: broken}")
    history = await site.natsctl("history", "shops", "reached", "-o", "json")
    first, *_, last = sorted(entry["revision"] for entry in history.json)
    return f"from={first}&to={last}"


@pytest.mark.parametrize(
    ("scheme", "width", "rules"),
    [("light", 1280, {}), ("dark", 1280, CONTRAST_ONLY), ("light", 400, NO_CONTRAST)],
)
async def test_axe_has_no_serious_finding(
    shared_site: Site, chromium: Browser, scheme: str, width: int, rules: dict[str, Any]
) -> None:
    query = await difference(shared_site)
    viewport = {"width": width, "height": 800}
    async with Visitor.of(
        chromium, shared_site.console, color_scheme=scheme, viewport=viewport
    ) as visitor:
        for path in PAGES:
            await visitor.open(path.format(difference=query))
            await visitor.page.evaluate(AXE)
            assert await visitor.page.evaluate(FINDINGS, rules) == [], path
            assert await visitor.page.evaluate(OVERFLOW) == 0, path
        visitor.check()


async def test_a_dialog_has_no_serious_finding(shared_site: Site, visitor: Visitor) -> None:
    await difference(shared_site)
    await visitor.open("/key/shops/reached")
    await visitor.page.get_by_role("button", name="Pause", exact=True).click()
    await expect(visitor.page.get_by_role("dialog")).to_be_visible()
    await visitor.page.evaluate(AXE)
    assert await visitor.page.evaluate(FINDINGS, {}) == []


async def test_the_keyboard_is_enough_from_home_to_a_difference(
    shared_site: Site, visitor: Visitor
) -> None:
    await difference(shared_site)
    page, keyboard = visitor.page, visitor.page.keyboard
    await expect(page.get_by_role("link", name="shops").first).to_be_visible()
    await keyboard.press("j")
    await keyboard.press("Enter")
    await expect(page.get_by_role("grid", name="Keys")).to_be_visible()
    await keyboard.press("/")
    await keyboard.type("reached")
    await expect(page.get_by_role("grid").get_by_role("link")).to_have_count(2)
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


async def test_the_arrows_move_in_the_tree(shared_site: Site, visitor: Visitor) -> None:
    await difference(shared_site)
    await visitor.open("/key/shops/reached")
    root = visitor.page.get_by_role("treeitem", name="Shop.shops/reached")
    part = visitor.page.get_by_role("treeitem", name="Part.parts/reached.a")
    await expect(part).to_be_visible()
    await root.focus()
    await visitor.page.keyboard.press("ArrowDown")
    await expect(part).to_be_focused()
    await visitor.page.keyboard.press("ArrowLeft")
    await expect(root).to_be_focused()
    await visitor.page.keyboard.press("ArrowLeft")
    await expect(part).to_be_hidden()
    await visitor.page.keyboard.press("ArrowRight")
    await expect(part).to_be_visible()


async def test_the_shortcuts_are_explained(visitor: Visitor) -> None:
    await visitor.page.keyboard.press("?")
    dialog = visitor.page.get_by_role("dialog", name="Shortcuts")
    await expect(dialog).to_contain_text("next and previous row")
    await visitor.page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)


async def test_the_focus_returns_after_a_dialog(shared_site: Site, visitor: Visitor) -> None:
    await difference(shared_site)
    await visitor.open("/key/shops/reached")
    button = visitor.page.get_by_role("button", name="Pause", exact=True)
    await button.focus()
    await visitor.page.keyboard.press("Enter")
    await expect(visitor.page.get_by_label("Reason")).to_be_focused()
    await visitor.page.keyboard.press("Escape")
    await expect(button).to_be_focused()
