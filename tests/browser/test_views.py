"""Each view of the console shows what the daemon and the buckets have."""

import re
from urllib.parse import urlsplit

import pytest
from playwright.async_api import expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def put(site: Site, key: str, image: str = "nginx", parts: str = "[a]") -> None:
    await site.natsctl.done("put", "shops", key, f"spec: {{image: {image}, parts: {parts}}}")


async def test_home_shows_the_controller_and_its_failing_keys(
    shared_site: Site, visitor: Visitor
) -> None:
    await put(shared_site, "home-failing", "broken-home")
    page = visitor.page
    row = page.get_by_role("table", name="Controllers").get_by_role("row").nth(1)
    await expect(row.get_by_role("link", name="shops")).to_be_visible()
    await expect(row).to_contain_text("syncing")
    await expect(page.get_by_role("heading", level=1)).to_have_text("1 of 1 controller needs you")
    cause = page.get_by_role("table", name="Causes").get_by_role("row")
    cause = cause.filter(has_text="cannot pull the image broken-home")
    await expect(cause.get_by_role("link", name="home-failing")).to_be_visible()
    await cause.get_by_role("link", name="1 key").click()
    rows = page.get_by_role("table", name="Keys").locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("home-failing")


async def test_a_page_is_three_files_an_answer_and_a_stream(visitor: Visitor) -> None:
    for path, answer in (("/", "home"), ("/keys/shops", "keys"), ("/members", "home")):
        await visitor.page.goto("about:blank")  # the page before may still ask
        visitor.requests.clear()
        await visitor.open(path)
        await expect(visitor.page.get_by_text("Live", exact=True)).to_be_visible()
        paths = [urlsplit(url).path for url in visitor.requests]
        assert f"/api/{answer}" in paths  # again after each change
        once = [one for one in paths if one not in (f"/api/{answer}", "/icon.svg")]
        assert sorted(once) == sorted([path, "/api/live", "/app.js", "/style.css"])


async def test_keys_of_a_prefix_are_shown_and_counted_without_a_reload(
    shared_site: Site, visitor: Visitor
) -> None:
    """The prefix is in the URL."""
    page = visitor.page
    cell = page.get_by_role("table", name="Controllers").locator("td").nth(1)
    await expect(cell).to_have_text(re.compile(r"^\d+$"))
    before = await cell.inner_text()
    await put(shared_site, "found-good", "nginx-1")
    await expect(cell).not_to_have_text(before)
    await put(shared_site, "found-bad", "broken-2")
    await put(shared_site, "other-good")
    await visitor.open("/keys/shops")
    good, other = (page.get_by_role("link", name=f"{name}-good") for name in ("found", "other"))
    await page.get_by_label("Keys that begin with").fill("found-")
    await page.get_by_label("Filter this page").fill("good")  # the prefix counts nevertheless
    await expect(other).to_have_count(0)
    await page.wait_for_url("**/keys/shops?prefix=found-*")
    await page.reload()
    await expect(good).to_be_visible()
    await expect(other).to_have_count(0)
    await expect(page.get_by_label("Keys that begin with")).to_have_value("found-")
    await visitor.open("/keys/shops?prefix=found-")
    rows = page.get_by_role("table", name="Keys").get_by_role("row")
    await expect(rows.filter(has_text="found-good")).to_contain_text("nginx-1")
    await expect(rows.filter(has_text="found-bad")).to_contain_text("failing")
    await expect(page.get_by_role("columnheader", name="Image")).to_be_visible()


async def test_a_key_shows_its_tree(shared_site: Site, visitor: Visitor) -> None:
    await put(shared_site, "tree-shop", parts="[a, b]")
    await visitor.open("/key/shops/tree-shop")
    tree = visitor.page.get_by_role("tree")
    await expect(tree.get_by_role("treeitem", name="Shop.shops/tree-shop")).to_contain_text("ready")
    await expect(tree.get_by_role("treeitem", name="Part.parts/tree-shop.a")).to_be_visible()
    await tree.get_by_role("link", name="Part.parts/tree-shop.b").click()
    await expect(visitor.page.get_by_role("heading", level=1)).to_have_text("tree-shop.b")
    await expect(visitor.page).to_have_url(visitor.console.base + "/buckets/parts/tree-shop.b")


async def test_the_timeline_has_revisions_syncs_and_events(
    shared_site: Site, visitor: Visitor
) -> None:
    """A revision shows its difference under a URL of its own."""
    await put(shared_site, "history-shop", "broken-first")
    await visitor.open("/key/shops/history-shop")
    page = visitor.page
    timeline = page.get_by_role("list", name="Timeline")
    failed = timeline.locator("li.sync.failed").first
    await expect(failed).to_contain_text("cannot pull the image broken-first")
    await expect(timeline.locator("li.revision").first).to_contain_text("Revision")
    await expect(timeline.locator("li.event").first).to_contain_text("broken-first")
    await put(shared_site, "history-shop", "nginx")
    await expect(timeline.locator("li.sync.done").first).to_be_visible()
    changed = page.locator("li.revision").filter(has_text="spec.image")
    await changed.get_by_role("link").click()
    row = page.locator("table.diff").get_by_role("row").filter(has_text="spec.image")
    await expect(row.locator("del")).to_have_text("broken-first")
    await expect(row.locator("ins")).to_have_text("nginx")
    await page.reload()
    await expect(row.locator("ins")).to_have_text("nginx")


async def test_members_buckets_and_an_unknown_page_lead_to_each_other(
    shared_site: Site, visitor: Visitor
) -> None:
    await put(shared_site, "browsed-shop", "nginx-browsed")
    page = visitor.page
    await visitor.open("/members")
    daemon = page.get_by_role("table", name="Daemons").get_by_role("row").nth(1)
    await expect(daemon).to_contain_text("alone")
    await expect(daemon).to_contain_text("syncing")
    await page.get_by_role("link", name="Buckets").click()
    await page.get_by_role("table", name="Buckets").get_by_role("link", name="parts").click()
    await page.get_by_label("Keys that begin with").fill("browsed-")
    await page.get_by_role("link", name="browsed-shop.a").click()
    await expect(page.get_by_label("Object", exact=True)).to_contain_text("nginx-browsed")
    await page.goto(visitor.console.base + "/buckets/a/b/c/")
    await page.goto(visitor.console.base + "/keys/")
    await expect(page.get_by_role("heading", level=1)).to_have_text("No such page")
    await page.locator("main").get_by_role("link", name="Home").click()
    await expect(page.get_by_role("table", name="Controllers")).to_be_visible()
