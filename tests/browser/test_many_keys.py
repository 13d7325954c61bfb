"""The table of keys stays usable with 100,000 keys, and while they change."""

import asyncio

import pytest
from nats.js.kv import KeyValue
from playwright.async_api import Locator, Route, expect

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
ROWS_MAX = 80
ROWS = "document.querySelectorAll('[role=grid] tbody tr').length"


async def fill(site: Site, bucket: str, count: int) -> None:
    """Create a bucket of so many keys, `k00000` and so on."""
    async with plain_client(site.nats.url, pending_size=64_000_000) as client:
        store = await jetstream_of(client).create_key_value(bucket=bucket)
        for number in range(count):
            await client.publish(f"$KV.{bucket}.k{number:05}", b'{"spec": {"number": 1}}')
        await client.flush(timeout=int(PATIENCE_S))
        await eventually(lambda: _has(store, count))


async def test_a_table_of_100_000_keys_has_few_rows_in_the_document(
    shared_site: Site, visitor: Visitor
) -> None:
    await fill(shared_site, "large", KEYS)
    page = visitor.page
    await eventually(lambda: _listed(visitor, "large"))
    await visitor.open("/buckets/large")
    await expect(
        page.get_by_role("status").filter(has_text="100,000 of 100,000 keys")
    ).to_be_visible()
    await expect(page.get_by_role("link", name="k00000", exact=True)).to_be_visible()
    assert await page.evaluate(ROWS) <= ROWS_MAX
    await page.locator(".scroller").evaluate(
        "(element) => element.scrollTo(0, element.scrollHeight)"
    )
    await expect(page.get_by_role("link", name="k99999", exact=True)).to_be_visible()
    assert await page.evaluate(ROWS) <= ROWS_MAX
    await page.get_by_label("Search keys").fill("k5432")
    await expect(page.get_by_role("status").filter(has_text="10 of 100,000 keys")).to_be_visible()
    await expect(page.get_by_role("link", name="k54321", exact=True)).to_be_visible()


async def test_an_offset_survives_a_reload(shared_site: Site, visitor: Visitor) -> None:
    await fill(shared_site, "offset", 3_000)
    page = visitor.page
    await visitor.open("/buckets/offset?offset=2000")
    await expect(page.get_by_role("link", name="k02000", exact=True)).to_be_in_viewport()
    await page.reload()
    await expect(page.get_by_role("link", name="k02000", exact=True)).to_be_in_viewport()
    assert visitor.count("offset=0&") == 0


async def _listed(visitor: Visitor, bucket: str) -> bool:
    """Return whether the console has listed the bucket, however long a busy machine takes."""
    address = f"{visitor.console.base}/api/objects?bucket={bucket}"
    return (await visitor.page.request.get(address, headers=visitor.console.headers)).ok


async def selected_row(site: Site, visitor: Visitor, bucket: str) -> tuple[Locator, Locator]:
    """Show the middle of a bucket of 2,000 keys; return a selected box and its row."""
    await fill(site, bucket, 2_000)
    await visitor.open(f"/buckets/{bucket}?offset=1000")
    chosen = visitor.page.get_by_label("Select k01005")
    await chosen.check()
    return chosen, visitor.page.get_by_role("row").filter(has=chosen)


async def _lists(visitor: Visitor, bucket: str, count: int) -> bool:
    """Return whether the console has seen that the bucket has so many keys."""
    address = f"{visitor.console.base}/api/objects?bucket={bucket}"
    answer = await (await visitor.page.request.get(address, headers=visitor.console.headers)).json()
    return answer["keys"] == count


async def _has(store: KeyValue, count: int) -> bool:
    return (await store.status()).values >= count


async def change(store: KeyValue, stop: asyncio.Event) -> None:
    """Change keys 50 times a second or less, and create keys before the visible ones."""
    number = 0
    while not stop.is_set():
        await store.put(f"k{1_000 + number % 50:05}", b'{"spec": {"number": 2}}')
        await store.put(f"a{number % 100:05}", b"{}")
        number += 1
        await asyncio.sleep(0.02)


async def test_many_new_keys_in_one_refresh_keep_the_rows_in_view(
    shared_site: Site, visitor: Visitor
) -> None:
    page = visitor.page
    chosen, place = await selected_row(shared_site, visitor, "sudden")
    before = await place.bounding_box()
    created = asyncio.Event()

    async def wait(route: Route) -> None:
        await created.wait()
        await route.continue_()

    await page.route("**/api/objects?*", wait)
    async with plain_client(shared_site.nats.url) as client:
        for number in range(250):
            await client.publish(f"$KV.sudden.a{number:05}", b"{}")
        await client.flush(timeout=int(PATIENCE_S))
    await eventually(lambda: _lists(visitor, "sudden", 2_250))
    created.set()
    await expect(page.get_by_role("status").filter(has_text="of 2,250 keys")).to_be_visible()
    await expect(chosen).to_be_checked()
    assert await place.bounding_box() == before


async def test_changes_keep_the_selection_and_the_rows_in_view(
    shared_site: Site, visitor: Visitor
) -> None:
    page = visitor.page
    chosen, place = await selected_row(shared_site, visitor, "busy")
    before = await place.bounding_box()
    stop = asyncio.Event()
    async with plain_jetstream(shared_site.nats.url) as jetstream:
        changes = asyncio.create_task(change(await jetstream.key_value("busy"), stop))
        await expect(page.get_by_role("status").filter(has_text="of 2,100 keys")).to_be_visible()
        stop.set()
        await changes
    await expect(chosen).to_be_checked()
    assert await place.bounding_box() == before
    elapsed_ms = await page.evaluate("performance.now()")
    for offset in (1000, 1100):  # the pages with rows in view; each is loaded four times a second
        assert visitor.count(f"offset={offset}&limit") <= elapsed_ms / 250 + 2
