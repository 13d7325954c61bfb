"""The console reports a lost connection and missing answers, and recovers."""

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import SHOPS, console, site
from tests.support.cli.natsctl_command import Natsctl
from tests.support.eventually import eventually
from tests.support.servers.nats_server import NatsServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_lost_server_and_an_ended_console_are_reported(
    chromium: Browser, tmp_path: Path
) -> None:
    """Until the server is back, the last values stay, dimmed, with their age."""
    async with site(tmp_path) as running, Visitor.of(chromium, running.console) as visitor:
        page = visitor.page
        pill = page.locator("#live")
        view, last = page.locator("#main > div.old"), page.locator(".last-known")
        await expect(pill).to_have_text("Live")
        await expect(page.get_by_role("link", name="shops").first).to_be_visible()
        await expect(last).to_be_hidden()
        running.nats.kill()
        await expect(last).to_contain_text("The last known values, from")
        await expect(view).to_contain_text("shops")
        await expect(pill).to_contain_text("reconnecting")
        await page.get_by_role("link", name="Members").click()
        await expect(notice(page)).to_contain_text("no connection to NATS")  # not shared answers
        await page.get_by_role("link", name="Home").click()
        await expect(notice(page)).to_contain_text("no connection to NATS")
        await expect(page.get_by_text("No key fails.")).to_be_hidden()
        await running.nats.start()
        await expect(page.get_by_text("No key fails.")).to_be_visible()
        await expect(last).to_be_hidden()
        await expect(pill).to_have_text("Live")
        visitor.expect_status(503, 504)
        await visitor.open("/keys/shops")
        await running.natsctl.done("put", "shops", "after", "spec: {image: nginx}")
        await expect(page.get_by_role("link", name="after")).to_be_visible()
        assert await running.console.process.ends(signal.SIGINT) == 0
        await expect(pill).to_contain_text("reconnecting")
        await page.get_by_role("link", name="Members").click()
        await expect(notice(page)).to_contain_text("is the command still running?")
        visitor.expect_lost_connections()
        visitor.check()


async def test_a_daemon_that_does_not_answer_is_named(chromium: Browser, tmp_path: Path) -> None:
    async with (
        site(tmp_path) as running,
        running.natsctl.running("run", "-c", SHOPS) as second,
        Visitor.of(chromium, running.console) as visitor,
    ):
        await second.logged("primaries listed, syncing")
        await visitor.open("/members")
        rows = visitor.page.get_by_role("table").get_by_role("row")
        await expect(rows).to_have_count(3)

        async def is_named() -> bool:
            """Stop the daemon, and return whether the console asked before it forgot the daemon."""
            os.kill(second.process.pid, signal.SIGCONT)
            await expect(rows).to_have_count(3)
            os.kill(second.process.pid, signal.SIGSTOP)
            await visitor.open("/members")
            return "1 of 2 daemons answered" in await notice(visitor.page).inner_text()

        await eventually(is_named, within_s=120)
        os.kill(second.process.pid, signal.SIGCONT)
        await expect(notice(visitor.page)).to_be_empty()
        visitor.check()


PERMISSIONS = """
    authorization: { users: [
      { user: admin, password: a },
      { user: reader, password: r, permissions: {
          publish: { allow: [">"], deny: ["natsctl.api.resync.>", "$KV.>"] }
      } }
    ] }
"""


async def test_without_a_daemon_the_buckets_are_browsed_and_a_refused_action_is_named(
    chromium: Browser, tmp_path: Path
) -> None:
    async with NatsServer(tmp_path / "nats", config=PERMISSIONS) as nats:
        address = nats.url.removeprefix("nats://")
        admin = Natsctl(tmp_path, f"nats://admin:a@{address}")
        reader = Natsctl(tmp_path, f"nats://reader:r@{address}")
        await admin.done("put", "notes", "first", "text: hello", "--create-bucket")
        async with console(reader) as running, Visitor.of(chromium, running) as visitor:
            page = visitor.page
            await expect(page.get_by_text("No daemon answers")).to_be_visible()
            await visitor.open("/buckets/notes")
            await page.get_by_role("link", name="first").click()
            await expect(page.get_by_label("Object", exact=True)).to_contain_text("hello")
            async with admin.running("run", "-c", SHOPS) as daemon:
                await daemon.logged("primaries listed, syncing")
                await admin.done("put", "shops", "guarded", "spec: {image: nginx}")
                await refused_actions_name_their_permissions(visitor)
            visitor.check()


async def refused_actions_name_their_permissions(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.open("/key/shops/guarded")
    await page.get_by_role("button", name="Resync", exact=True).press("Enter")
    await expect(page.get_by_role("log").locator(".bad")).to_contain_text("resync")
    await expect(page.get_by_role("tree")).to_contain_text("guarded")
    await page.get_by_role("button", name="Pause", exact=True).press("Enter")
    await expect(page.get_by_role("log")).to_contain_text("publish to $KV.shops")
    await visitor.open("/keys/shops")
    pause = page.get_by_role("button", name="Pause", exact=True)
    await expect(pause).to_have_attribute("title", re.compile("publish to .KV.natsctl"))
    await pause.focus()
    for _ in range(2):  # the page draws the first answer before it asks again, and the focus stays
        async with page.expect_response(re.compile("/api/keys")):
            pass
    await page.keyboard.press("Enter")
    refused = page.get_by_role("log").filter(has_text="publish to $KV.natsctl")
    await expect(refused).to_contain_text("Pause is off")


def notice(page: Page) -> Locator:
    return page.locator(".notice")
