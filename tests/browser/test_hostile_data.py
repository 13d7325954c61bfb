"""Texts from objects stay texts: nothing of them runs, and nothing is requested because of them."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site
from tests.support.clients.plain_client import plain_jetstream

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCRIPT = "<script>alert('script')</script><img src=x onerror=alert('img')>"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload=alert('svg')><style>@import 'http://evil.example/x'</style></svg>"
LINK = "javascript:alert('link')"
BIDI = "\u202egnp.exe\u2066\u200b\u0000\u001b[31m"
LARGE = "x" * 120_000
TEXTS = {"markup": SCRIPT + SVG, "link": LINK, "bidi": BIDI, "large": LARGE}
KEY = "hostile.a=b/c-_d"  # as far as keys of NATS go


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def _hostile(shared_site: Site) -> AsyncIterator[None]:
    """Store each text as a value, a label, an annotation, an error and a value that is no JSON.

    They're deleted at the end, because each page with them is large.
    """
    async with plain_jetstream(shared_site.nats.url) as jetstream:
        shops = await jetstream.key_value("shops")
        for name, text in TEXTS.items():
            shop = {
                "metadata": {"labels": {text[:60]: text[:60]}, "annotations": {"a": text[:1000]}},
                "spec": {"image": f"broken{text}", "parts": []},
                "status": {"ready": text, "reason": text},
            }
            for image in ("broken", f"broken{text}"):
                shop["spec"] = {"image": image, "parts": []}
                await shops.put(f"{KEY}.{name}", json.dumps(shop).encode())
            await shops.put(f"{KEY}.{name}.text", text.encode())
            invalid = json.dumps({"spec": {"image": [text]}})
            await shops.put(f"{KEY}.{name}.invalid", invalid.encode())
        yield
        for name in TEXTS:
            for end in ("", ".text", ".invalid"):
                await shops.delete(f"{KEY}.{name}{end}")


@pytest.mark.usefixtures("_hostile")
async def test_no_text_of_an_object_becomes_markup_on_any_page(visitor: Visitor) -> None:
    page = visitor.page
    pages = ["/", "/keys/shops?prefix=hostile", "/garbage/shops", "/members", "/buckets"]
    pages += ["/buckets/shops?prefix=hostile", f"/keys/shops?prefix={SCRIPT}"]
    pages += [f"/keys/shops?state=failing&cause={SVG}"]
    pages += [f"/key/shops/{KEY}.{name}{end}" for name in TEXTS for end in ("", ".invalid")]
    pages += [f"/buckets/shops/{KEY}.{name}.text" for name in TEXTS]
    markup = page.locator("main script, main img, main style, main iframe")
    for path in pages:
        await visitor.open(path)
        await visitor.settle()
        assert await markup.count() == 0
    await visitor.open(f"/buckets/shops/{KEY}.bidi.text")  # which changes the direction
    await expect(page.get_by_label("Object", exact=True)).to_contain_text("gnp.exe")
    assert "\u202e" not in await page.content()
    await visitor.open(f"/buckets/shops/{KEY}.large.text")
    await expect(page.get_by_text("characters are left out")).to_be_visible()
    assert len(await page.content()) < 300_000
