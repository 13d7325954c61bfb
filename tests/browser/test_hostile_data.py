"""Texts from objects stay texts: nothing of them runs, and nothing is requested because of them."""

import json

import pytest
from playwright.async_api import expect

from tests.support.cli.browser import Visitor
from tests.support.cli.console import Site
from tests.support.clients.plain_client import plain_jetstream

pytestmark = pytest.mark.asyncio(loop_scope="session")

SCRIPT = "<script>alert('script')</script><img src=x onerror=alert('img')>"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload=alert('svg')><style>@import 'http://evil.example/x'</style></svg>"
LINK = "javascript:alert('link')"
BIDI = "\u202egnp.exe\u2066\u200b\u0000\u001b[31m"
LARGE = "x" * 1_000_000
TEXTS = {"script": SCRIPT, "svg": SVG, "link": LINK, "bidi": BIDI, "large": LARGE}
KEY = "hostile.a=b/c-_d"  # as far as keys of NATS go


async def store(site: Site) -> None:
    """Store each text as a value, a label, an annotation, an error and a value that is no JSON."""
    async with plain_jetstream(site.nats.url) as jetstream:
        shops = await jetstream.key_value("shops")
        for name, text in TEXTS.items():
            shop = {
                "metadata": {"labels": {text[:60]: text[:60]}, "annotations": {"a": text[:1000]}},
                "spec": {"image": f"broken{text}", "parts": []},
                "status": {"ready": text, "reason": text},
            }
            for image in ("broken", f"broken{text}"):
                shop["spec"] = {"image": image, "parts": []}
                await shops.put(f"{KEY}.{name}", json.dumps(shop)[:1_040_000].encode())
            await shops.put(f"{KEY}.{name}.text", text.encode())
            await shops.put(
                f"{KEY}.{name}.invalid", json.dumps({"spec": {"image": [text]}}).encode()
            )


async def test_no_text_of_an_object_becomes_markup_on_any_page(
    shared_site: Site, visitor: Visitor
) -> None:
    await store(shared_site)
    pages = ["/", "/keys/shops?prefix=hostile", "/garbage/shops", "/members", "/buckets"]
    pages += ["/buckets/shops?prefix=hostile", f"/keys/shops?prefix={SCRIPT}"]
    pages += [f"/keys/shops?state=failing&cause={SVG}"]
    pages += [f"/key/shops/{KEY}.{name}{end}" for name in TEXTS for end in ("", ".invalid")]
    pages += [f"/buckets/shops/{KEY}.{name}.text" for name in TEXTS]
    for path in pages:
        await visitor.open(path)
        await visitor.settle()
        assert (
            await visitor.page.locator("main script, main img, main style, main iframe").count()
            == 0
        )


async def test_characters_that_change_the_direction_are_shown_as_codes(
    shared_site: Site, visitor: Visitor
) -> None:
    await store(shared_site)
    await visitor.open(f"/buckets/shops/{KEY}.bidi.text")
    await expect(visitor.page.get_by_label("Object", exact=True)).to_contain_text("gnp.exe")
    assert "\u202e" not in await visitor.page.content()


async def test_a_large_value_is_cut_with_a_note(shared_site: Site, visitor: Visitor) -> None:
    await store(shared_site)
    await visitor.open(f"/buckets/shops/{KEY}.large.text")
    await expect(visitor.page.get_by_text("characters are left out")).to_be_visible()
    assert len(await visitor.page.content()) < 300_000
