"""The controllers of `docs/recipes.md` do what the page says."""

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from natsctl.testing import MemoryStores, running

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def page() -> Any:
    names: dict[str, Any] = {"__name__": "recipes"}
    for code in BLOCK.findall(PAGE.read_text()):
        exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
    return SimpleNamespace(**names)


def shop(page: Any, name: str = "Corner", profile: str = "basic") -> Any:
    return page.Shop(spec=page.ShopSpec(name, profile))


async def test_an_http_api_is_told_once_it_is_not_busy_and_a_refusal_waits_for_a_change(
    page: Any,
) -> None:
    answers, told = iter((429, 200, 422)), list[str]()

    async def put(request: web.Request) -> web.Response:
        told.append((await request.json())["name"])
        code = next(answers)
        return web.Response(status=code, text="no", headers={"Retry-After": "0.01"})

    app = web.Application()
    app.router.add_put("/shops/a", put)
    async with TestServer(app) as server:
        page.Announcer.sync_handler.__globals__["API"] = str(server.make_url("")).rstrip("/")
        controller = page.Announcer()
        async with running(controller) as harness:
            await controller.shops.put("a", shop(page))
            await harness.run_until(lambda: len(told) == 2)
            await harness.run_until_idle()
            assert controller.shops.get("a").status["ready"]
            await controller.shops.put("a", shop(page, "Market"))
            await harness.run_until(lambda: len(told) == 3)
            await harness.run_until_idle()
            assert "refuses the shop: no" in harness.runtime.explain("a").syncs[-1].error
    assert told == ["Corner", "Corner", "Market"]


async def test_a_secret_is_used_as_soon_as_it_exists_and_again_when_it_changes(
    page: Any,
) -> None:
    used = list[str]()

    class Tokens(page.Tokens):  # type: ignore[misc]
        async def use(self, token: str) -> None:
            used.append(base64.b64decode(token).decode())

    controller, stores = Tokens(), MemoryStores()
    async with running(controller, stores=stores) as harness:
        await controller.shops.put("a", shop(page))
        await harness.run_for(1)
        assert used == []
        secrets = await stores.kube.open(page.SECRETS)
        revision = 0
        for text in ("one", "two"):
            data = {"token": base64.b64encode(text.encode()).decode()}
            manifest = {"metadata": {"name": "basic", "namespace": "shops"}, "data": data}
            value = json.dumps(manifest).encode()
            if revision:
                await secrets.update("shops/basic", value, revision=revision)
            else:
                revision = (await secrets.create("shops/basic", value)).revision
            await harness.run_until(lambda: used and used[-1] == text)  # noqa: B023 - used at once
    assert used == ["one", "two"]


async def test_two_controllers_of_one_bucket_keep_each_others_status(page: Any) -> None:
    pages, signs, stores = page.Pages(), page.Signs(), MemoryStores()
    async with running(pages, stores=stores) as first, running(signs, stores=stores) as second:
        await pages.shops.put("a", shop(page))
        await first.run_until_idle()
        await second.run_until_idle()
        assert pages.pages.get("a").spec == {"title": "Corner"}
        assert signs.signs.get("a").spec == {"text": "CORNER"}
        found = pages.shops.get("a").status
    assert (found["page"], found["sign"]) == ("/shops/a", True)


async def test_the_account_is_closed_before_the_shop_is_gone(page: Any) -> None:
    controller = page.Accounts()
    async with running(controller) as harness:
        await controller.shops.put("a", shop(page))
        await harness.run_until_idle()
        assert page.ACCOUNTS == {"a": "Corner"}
        await controller.shops.delete("a")
        await harness.run_until_idle()
        assert page.ACCOUNTS == {}
        assert controller.shops.get("a") is None


async def test_a_profile_that_changes_syncs_only_the_shops_that_use_it(
    page: Any,
) -> None:
    controller, stores = page.Styled(), MemoryStores()
    async with running(controller, stores=stores) as harness:
        profiles = await stores.open(page.PROFILES)
        await controller.shops.put("a", shop(page, profile="gold"))
        await controller.shops.put("b", shop(page, profile="basic"))
        await harness.run_until_idle()
        assert controller.pages.get("a").spec == {"colour": "grey"}
        await profiles.create("gold", b'{"colour": "yellow"}')
        await harness.run_until_idle()
        assert controller.pages.get("a").spec == {"colour": "yellow"}
        assert controller.pages.get("b").spec == {"colour": "grey"}
        assert len(harness.runtime.explain("b").syncs) == 1


async def test_a_shop_of_the_old_type_is_read_as_the_new_one(page: Any) -> None:
    decoded = page.NEW.decode(b'{"spec": {"name": "Corner"}}')
    assert decoded.spec.names == ["Corner"]
