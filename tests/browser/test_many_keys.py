"""The table of keys stays usable with 100,000 keys, and while they change."""

import asyncio
from time import perf_counter

import pytest
from nats.js.kv import KeyValue
from playwright.async_api import expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site
from tests.support.clients.plain_client import (
    PATIENCE_S,
    jetstream_of,
    plain_client,
    plain_jetstream,
)
from tests.support.eventually import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEYS = 100_000
ROWS = "table[aria-label=Keys] tbody tr"


async def fill(site: Site, bucket: str, count: int) -> None:
    """Create a bucket of so many keys, `k00000` and so on."""
    async with plain_client(site.nats.url, pending_size=64_000_000) as client:
        store = await jetstream_of(client).create_key_value(bucket=bucket)
        for number in range(count):
            await client.publish(f"$KV.{bucket}.k{number:05}", b'{"spec": {"number": 1}}')
        await client.flush(timeout=int(PATIENCE_S))
        await eventually(lambda: _has(store, count))


async def _has(store: KeyValue, count: int) -> bool:
    return (await store.status()).values >= count


async def test_100_000_keys_are_paged_in_their_order(shared_site: Site, visitor: Visitor) -> None:
    await fill(shared_site, "large", KEYS)
    page = visitor.page
    began = perf_counter()
    await visitor.open("/buckets/large")
    await expect(page.locator(ROWS).first).to_be_visible()
    print(f"first rows of {KEYS:,} keys: {perf_counter() - began:.2f} s")
    await expect(page.get_by_role("link", name="k00000", exact=True)).to_be_visible()
    await expect(page.get_by_text("1-100 of 100,000 keys")).to_be_visible()
    await expect(page.locator(ROWS)).to_have_count(100)
    await page.get_by_role("link", name="Next page").click()
    await expect(page.get_by_role("link", name="k00100", exact=True)).to_be_visible()
    await page.get_by_label("Keys that begin with").fill("k5432")
    await expect(page.get_by_text("1-10 of 10 keys")).to_be_visible()
    await expect(page.get_by_role("link", name="k54321", exact=True)).to_be_visible()
    await page.get_by_label("Filter this page").fill("k54325")
    await expect(page.locator(ROWS)).to_have_count(1)


async def test_a_page_is_in_the_url_and_survives_a_reload(
    shared_site: Site, visitor: Visitor
) -> None:
    await fill(shared_site, "offset", 3_000)
    page = visitor.page
    await visitor.open("/buckets/offset?offset=2000")
    await expect(page.locator(ROWS).first).to_contain_text("k02000")
    await page.reload()
    await expect(page.locator(ROWS).first).to_contain_text("k02000")
    pages = visitor.count("/api/keys?bucket=offset")
    assert pages == visitor.count("/api/keys?bucket=offset&offset=2000")


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
