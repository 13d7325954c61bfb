"""The actions of the console act on the daemon, and report what happened."""

import getpass
import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def put(site: Site, key: str, image: str = "nginx") -> None:
    await site.natsctl.done("put", "shops", key, f"spec: {{image: {image}}}")


async def open_key(site: Site, visitor: Visitor, key: str, image: str = "nginx") -> None:
    """Put a shop, and open its page when it was synced."""
    await put(site, key, image)
    await visitor.open(f"/key/shops/{key}")
    await expect(syncs(visitor).first).to_be_visible()


def syncs(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("list", name="Timeline").locator("li.sync")


def button(visitor: Visitor, name: str) -> Locator:
    return visitor.page.get_by_role("button", name=name, exact=True)


def reports(visitor: Visitor) -> Locator:
    return visitor.page.get_by_role("log")


async def test_resync_syncs_the_key_and_is_in_the_events_with_the_user(
    shared_site: Site, visitor: Visitor
) -> None:
    await open_key(shared_site, visitor, "resynced")
    await button(visitor, "Resync").click()
    await expect(reports(visitor)).to_contain_text("1 key of shops queued")
    await expect(syncs(visitor).filter(has_text="manual").first).to_be_visible()
    event = visitor.page.locator("li.event").filter(has_text="ConsoleResync")
    await expect(event).to_contain_text(f"resync by {getpass.getuser()}@")


async def test_pause_and_resume_are_shown(shared_site: Site, visitor: Visitor) -> None:
    await open_key(shared_site, visitor, "paused-shop")
    page = visitor.page
    await button(visitor, "Pause").click()
    dialog = page.get_by_role("dialog", name="Pause paused-shop?")
    await dialog.get_by_label("Reason").fill("waits for a disk")
    await dialog.get_by_label("Time").fill("100d")
    await dialog.get_by_role("button", name="Pause").click()
    fact = page.locator(".trouble").filter(has_text="waits for a disk")
    shown = re.compile(r"paused *for \d+\w+ ends in 99d by \S+: waits for a disk")
    await expect(fact).to_contain_text(shown)
    await button(visitor, "Plan").click()
    plan = page.get_by_role("dialog", name="Plan for paused-shop")
    await expect(plan).to_contain_text("The key is not synced: paused")
    await expect(plan).to_contain_text("0 to create, 0 to change, 0 to delete, 0 failed")
    await page.keyboard.press("Escape")
    await expect(plan).to_have_count(0)
    await visitor.open("/keys/shops?prefix=paused-shop")
    await expect(page.get_by_role("row").nth(1)).to_contain_text(shown)
    await visitor.open("/key/shops/paused-shop")
    await expect(button(visitor, "Pause")).to_have_count(0)
    await button(visitor, "Resync").press("Enter")
    await expect(reports(visitor)).to_contain_text("Resync is off: it is paused")
    await button(visitor, "Resume").click()
    await expect(fact).to_have_count(0)


async def test_a_whole_controller_is_paused_and_resumed(
    shared_site: Site, visitor: Visitor
) -> None:
    await visitor.open("/keys/shops")
    page = visitor.page
    await button(visitor, "Pause").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await expect(reports(visitor)).not_to_be_empty()  # another page would end the request
    await visitor.open("/")
    await expect(page.get_by_role("table", name="Controllers")).to_contain_text("paused")
    await visitor.open("/keys/shops")
    await button(visitor, "Resume").click()
    dialog = page.get_by_role("dialog", name="Resume all keys of shops?")
    await dialog.get_by_role("button", name="Resume").click()
    await expect(reports(visitor)).not_to_be_empty()

    async def is_resumed() -> bool:
        status = await shared_site.natsctl.done("status", "-o", "json")
        return json.loads(status)[0]["paused_controller"] is None

    await eventually(is_resumed)


async def test_a_failing_key_shows_its_error_its_plan_and_its_recording(
    shared_site: Site, visitor: Visitor, tmp_path: Path
) -> None:
    """A sync that succeeds is recorded when somebody asks for it."""
    await open_key(shared_site, visitor, "recorded-shop", "broken-recorded")
    wrong = visitor.page.get_by_role("region", name="What is wrong")
    await expect(wrong).to_contain_text("cannot pull the image broken-recorded")
    await expect(wrong).to_contain_text("next try in")
    await wrong.get_by_text("Traceback").click()
    await expect(wrong.get_by_label("Traceback")).to_contain_text("in Shops.sync_handler")
    await button(visitor, "Plan").click()
    plan = visitor.page.get_by_role("dialog", name="Plan for recorded-shop")
    await expect(plan).to_contain_text("0 to create, 0 to change, 0 to delete, 1 failed")
    await expect(plan).to_contain_text("cannot pull the image broken-recorded")
    await visitor.page.keyboard.press("Escape")
    async with visitor.page.expect_download() as download:
        await button(visitor, "Download recording").click()
    file = tmp_path / "recording.json"
    await (await download.value).save_as(file)
    assert json.loads(file.read_text())["key"] == "recorded-shop"
    await open_key(shared_site, visitor, "recorded-later")
    await button(visitor, "Download recording").click()
    await expect(reports(visitor).locator(".bad")).to_contain_text("recording")
    visitor.expect_status(404)
    await button(visitor, "Record").click()
    await expect(reports(visitor)).to_contain_text("record")
    await button(visitor, "Resync").click()
    await expect(syncs(visitor).filter(has_text="manual").first).to_be_visible()
    async with visitor.page.expect_download():
        await button(visitor, "Download recording").click()


async def test_garbage_is_deleted_after_its_count_is_typed(
    shared_site: Site, visitor: Visitor
) -> None:
    marks = {"natsctl.io/owner-kind": "Shop.shops", "natsctl.io/owner-key": "nobody"}
    orphan = json.dumps(
        {"metadata": {"labels": marks, "annotations": marks}, "spec": {"image": "lost"}}
    )
    for key in ("stray-1", "stray-2", "stray-3"):
        await shared_site.natsctl.done("put", "parts", key, orphan)
    await visitor.open("/garbage/shops")
    page = visitor.page
    await expect(page.get_by_role("status").filter(has_text="is held")).to_be_visible()
    for key in ("stray-1", "stray-2"):
        await page.get_by_label(f"Select Part.parts/{key}").check()
    await button(visitor, "Apply for 2 objects").click()
    dialog = page.get_by_role("dialog", name="Delete 2 objects?")
    delete = dialog.get_by_role("button", name="Delete")
    await expect(delete).to_be_disabled()
    await dialog.get_by_label("Type 2 to delete 2 objects").fill("3")
    await expect(delete).to_be_disabled()
    await dialog.get_by_label("Type 2 to delete 2 objects").fill("2")
    await delete.click()
    await expect(page.get_by_label("Select Part.parts/stray-1")).to_have_count(0)
    await expect(page.get_by_label("Select Part.parts/stray-3")).to_be_visible()
    stored = await shared_site.natsctl.done("get", "parts", "-o", "name")
    assert "parts/stray-3" in stored
    assert not {"parts/stray-1", "parts/stray-2"} & set(stored.split())


async def test_selected_keys_are_resynced_with_the_keyboard(
    shared_site: Site, visitor: Visitor
) -> None:
    for key in ("batch-1", "batch-2", "batch-3"):
        await put(shared_site, key)
    await visitor.open("/keys/shops?search=batch-")
    page = visitor.page
    await expect(page.get_by_role("link", name="batch-3")).to_be_visible()
    for key in ("j", " ", "j", " ", "r"):
        await page.keyboard.press(key)
    await expect(reports(visitor)).to_contain_text("2 keys")

    async def synced(key: str) -> bool:
        return "manual" in await shared_site.natsctl.done("describe", "shops", key, "-o", "json")

    await eventually(lambda: synced("batch-1"))
    await eventually(lambda: synced("batch-2"))
    assert not await synced("batch-3")


async def test_an_edit_is_checked_compared_and_stored(shared_site: Site, visitor: Visitor) -> None:
    """Then the earlier revision is restored."""
    await open_key(shared_site, visitor, "edited-shop", "nginx-1")
    page = visitor.page
    await button(visitor, "Edit").click()
    text = page.get_by_role("dialog").get_by_label("Object")
    await expect(text).to_have_value(re.compile("nginx-1"))
    await text.fill('{"spec": {"image": 7}}')
    await button(visitor, "Review").click()
    await expect(page.get_by_role("list", name="Faults")).to_contain_text("spec.image")
    await expect(button(visitor, "Store")).to_be_disabled()
    await button(visitor, "Cancel").click()
    await text.fill('{"spec": {"image": "nginx-2"}}')
    await button(visitor, "Review").click()
    await expect(page.locator("table.diff ins")).to_have_text("nginx-2")
    await button(visitor, "Store").click()
    await expect(reports(visitor)).to_contain_text("shops/edited-shop stored at revision")
    shown = page.get_by_label("Object", exact=True)
    await expect(shown).to_contain_text("nginx-2")
    await page.get_by_role("button", name="Restore revision").last.click()
    await expect(page.locator("table.diff ins")).to_have_text("nginx-1")
    await button(visitor, "Store").click()
    await expect(shown).to_contain_text("nginx-1")


async def test_an_action_on_a_filter_acts_on_its_keys(shared_site: Site, visitor: Visitor) -> None:
    for number in range(3):
        await put(shared_site, f"filtered-{number}", "broken-filtered")
    await visitor.open("/keys/shops?state=failing&prefix=filtered-")
    await expect(visitor.page.get_by_text("Act on 3 failing keys")).to_be_visible()
    await button(visitor, "Pause").click()
    dialog = visitor.page.get_by_role("dialog", name="Pause 3 failing keys of shops?")
    await dialog.get_by_role("button", name="Pause").click()
    await expect(reports(visitor)).to_contain_text("shops/filtered-2 paused")
