"""Only a page that has the token of the printed URL can act; no other page of the host has it."""

import re
import signal

import pytest
from aiohttp import ClientSession, web
from playwright.async_api import Browser, Page, expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site, console

pytestmark = pytest.mark.asyncio(loop_scope="session")

ACT = """async (base) => {
    const pause = JSON.stringify({ controller: "shops", everything: true, reason: "taken over" });
    const act = (options) => fetch(`${base}/api/actions/pause`, { method: "POST", body: pause,
        credentials: "include", ...options }).then((answer) => answer.type, () => "refused");
    return {
        read: await fetch(`${base}/api/home`, { credentials: "include" })
            .then((answer) => answer.text(), () => ""),
        blind: await act({ mode: "no-cors" }),
        asked: await act({ headers: { Authorization: "Bearer x" } }),
        stored: Object.keys(sessionStorage).concat(Object.keys(localStorage)),
        cookies: document.cookie,
        told: await new Promise((done) => {
            const tabs = new BroadcastChannel("natsctl-console-token");
            tabs.onmessage = ({ data }) => done(data);
            tabs.postMessage({ wanted: true });
            setTimeout(done, 1000, "nothing");
        }),
    };
}"""
"""What a page can try: scripts, cookies, storage, and a channel to the console's tabs."""


async def test_a_page_of_another_port_of_the_host_cannot_act(
    shared_site: Site, visitor: Visitor
) -> None:
    """Both the page and its server try: a browser sends cookies to every port of a host."""
    running = shared_site.console
    given: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        given.update({name: text for name, text in request.headers.items() if name != "Host"})
        return web.Response(text="<!doctype html><title>x</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    page = await visitor.page.context.new_page()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await page.goto(f"http://127.0.0.1:{runner.addresses[0][1]}/")
        tried = await page.evaluate(ACT, running.base)
        async with ClientSession(headers=given) as session:
            async with session.get(f"{running.base}/api/home") as reply:
                known = await reply.json()
            headers = {"X-CSRF-Token": known.get("csrf", "")}
            body = {"controller": "shops", "everything": True, "reason": "taken over"}
            url = f"{running.base}/api/actions/pause"
            async with session.post(url, json=body, headers=headers) as reply:
                status = reply.status
    finally:
        await page.close()
        await runner.cleanup()
    assert status == 401
    assert " all " not in await shared_site.natsctl.done("status")  # the column of paused keys
    assert "Cookie" not in given
    assert tried == {
        "read": "",
        "blind": "refused",
        "asked": "refused",
        "stored": [],
        "cookies": "",
        "told": "nothing",
    }


async def test_the_token_stays_in_the_tabs_of_the_console(
    shared_site: Site, visitor: Visitor
) -> None:
    """Over a reload too, and for a page that opens beside it; it's in no cookie and in no URL."""
    token = shared_site.console.url.partition("token=")[2]
    await visitor.open("/members")
    assert await visitor.page.context.cookies() == []
    assert "token" not in visitor.page.url
    assert not [url for url in visitor.requests if token in url.partition("#")[0]]
    assert token in await visitor.page.evaluate("() => Object.values(sessionStorage)")
    await visitor.page.reload()
    await is_live(visitor.page, "Members")
    page = await visitor.page.context.new_page()
    await page.goto(f"{visitor.console.base}/members")
    await is_live(page, "Members")


async def test_a_page_without_the_token_says_where_it_is(
    chromium: Browser, shared_site: Site
) -> None:
    context = await chromium.new_context()
    page = await context.new_page()
    await page.goto(shared_site.console.base)
    await expect(page.locator(".notice")).to_contain_text("Signed out")
    await expect(page.locator(".notice")).to_contain_text("natsctl console --open")
    await page.goto(shared_site.console.url)  # in the same tab
    await is_live(page, HOME)
    await context.close()


async def test_a_new_console_at_the_same_address_needs_its_own_url(
    chromium: Browser, shared_site: Site
) -> None:
    natsctl = shared_site.natsctl
    async with console(natsctl) as first, Visitor.of(chromium, first) as visitor:
        port = first.base.rpartition(":")[2]
        await first.process.ends(signal.SIGINT)
        async with natsctl.running("console", "--port", port) as process:
            await process.logged("token=")
            await expect(visitor.page.locator(".notice")).to_contain_text("Signed out")
            page = await visitor.page.context.new_page()
            await page.goto(process.log.split("serves ")[1].split()[0])
            await is_live(page, HOME)
            await is_live(visitor.page, HOME)  # the first tab has asked the second one


HOME = re.compile("controller")


async def is_live(page: Page, title: str | re.Pattern[str]) -> None:
    await expect(page.get_by_role("heading", level=1)).to_have_text(title)
    await expect(page.locator("#live")).to_have_text("Live")
    await expect(page.locator(".notice")).to_be_empty()
