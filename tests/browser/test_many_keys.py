"""The table of keys stays usable with many keys, and while they change."""

import asyncio

import pytest
from nats.js.kv import KeyValue
from playwright.async_api import expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site
from tests.support.clients.plain_client import (
    PATIENCE_S,
    plain_client,
    plain_jetstream,
)
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROWS = "table[aria-label=Keys] tbody tr"


async def fill(site: Site, bucket: str, count: int) -> None:
    """Create a bucket of so many keys, `k00000` and so on."""
    async with plain_client(site.nats.url, pending_size=64_000_000) as client:
        store = await client.jetstream().create_key_value(bucket=bucket)
        for number in range(count):
            await client.publish(f"$KV.{bucket}.k{number:05}", b'{"spec": {"number": 1}}')
        await client.flush(timeout=int(PATIENCE_S))
        await eventually(lambda: _has(store, count))


async def _has(store: KeyValue, count: int) -> bool:
    return (await store.status()).values >= count


@pytest.mark.parametrize("count", [12_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_many_keys_are_paged_in_their_order(
    shared_site: Site, visitor: Visitor, count: int
) -> None:
    """The page is in the URL. The names of more than ten thousand keys aren't awaited."""
    bucket = f"many-{count}"
    await fill(shared_site, bucket, count)
    page, rows = visitor.page, visitor.page.locator(ROWS)
    await visitor.open(f"/buckets/{bucket}")
    await expect(page.get_by_role("link", name="k00000", exact=True)).to_be_visible()
    await expect(page.get_by_text(f"1-100 of {count:,} keys")).to_be_visible()
    await expect(rows).to_have_count(100)
    await page.get_by_role("link", name="Next page").click()
    await expect(page.get_by_role("link", name="k00100", exact=True)).to_be_visible()
    await page.get_by_label("Keys that begin with").fill("k0543")
    await expect(page.get_by_text("1-10 of 10 keys")).to_be_visible()
    await expect(page.get_by_role("link", name="k05432", exact=True)).to_be_visible()
    await page.get_by_label("Filter this page").fill("k05435")
    await expect(rows).to_have_count(1)
    await page.goto("about:blank")  # the page before may still ask
    visitor.requests.clear()
    await visitor.open(f"/buckets/{bucket}?offset=2000")
    await expect(rows.first).to_contain_text("k02000")
    await page.reload()
    await expect(rows.first).to_contain_text("k02000")
    asked = f"/api/keys?bucket={bucket}"
    assert visitor.count(asked) == visitor.count(f"{asked}&offset=2000") > 0


async def change(store: KeyValue, stop: asyncio.Event) -> None:
    """Change keys 50 times a second or less, and create keys after the visible ones."""
    number = 0
    while not stop.is_set():
        await store.put(f"s{number % 50:05}", b'{"spec": {"image": "nginx-2"}}')
        await store.put(f"t{number % 100:05}", b'{"spec": {"image": "nginx-2"}}')
        number += 1
        await asyncio.sleep(0.02)


async def test_changes_keep_the_selection(shared_site: Site, visitor: Visitor) -> None:
    page = visitor.page
    async with plain_jetstream(shared_site.nats.url) as jetstream:
        shops = await jetstream.key_value("shops")
        for number in range(60):
            await shops.put(f"s{number:05}", b'{"spec": {"image": "nginx-1"}}')
        await visitor.open("/keys/shops?prefix=s0")
        chosen = page.get_by_label("Select s00005")
        await chosen.check()
        stop = asyncio.Event()
        changes = asyncio.create_task(change(shops, stop))
        row = page.get_by_role("row").filter(has=chosen)
        await expect(row).to_contain_text("nginx-2")
        stop.set()
        await changes
    await expect(chosen).to_be_checked()
    await expect(page.get_by_text("Act on 1 selected key")).to_be_visible()
