"""What a service answers about names is taken as a person would mean it."""

import json
from collections.abc import Mapping

import pytest

from natsctl import HookController, Object, UsageError, kube, kv, primary, secondary, untyped
from natsctl.testing import running


class Service:
    """Answers with children that it names as a person may."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.children: list[list[str]] = []

    async def request(
        self,
        subject: str,
        body: bytes,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> bytes:
        assert (subject, timeout_s) == ("shops.sync", 10.0), headers
        self.children.append(list(json.loads(body)["children"]["v1/ConfigMap"]))
        children: dict[str, dict[str, object]] = {name: {"data": {}} for name in self.names}
        return json.dumps({"children": {"v1/ConfigMap": children}}).encode()


class Page(Object, frozen=True):
    spec: dict[str, object]


class Shops(HookController):
    hook = "shops.sync"
    shops = primary(untyped("shops"))
    maps = secondary(kube("v1", "ConfigMap", namespace="shops"))


@pytest.mark.parametrize("name", ["menu", "shops/menu"])
async def test_a_child_named_without_the_namespace_of_its_slot_stays(name: str) -> None:
    controller = Shops()
    controller.requests = service = Service(name)
    async with running(controller) as harness:
        await harness.stores.store(Shops.shops.kind).create("shop", b'{"spec":{}}')
        await harness.run_until_idle()
        for _ in range(2):
            harness.runtime.resync("shop")
            await harness.run_until_idle()
    assert service.children == [[], ["shops/menu"], ["shops/menu"]]


async def test_one_child_under_two_names_is_a_failure_of_its_key() -> None:
    controller = Shops()
    controller.requests = Service("menu", "shops/menu")
    async with running(controller) as harness:
        await harness.stores.store(Shops.shops.kind).create("shop", b'{"spec":{}}')
        await harness.run_for(1)
        (error,) = harness.runtime.status().failing.values()
        assert "v1/ConfigMap 'shops/menu' occurs twice" in error


class Profiles(HookController):
    hook = "shops.sync"
    hook_reads = (kv(dict, bucket="profiles"),)
    shops = primary(untyped("shops"))


async def test_a_read_of_no_legal_key_is_retried_because_the_next_answer_may_be_right() -> None:
    class Learning(Service):
        async def request(self, *_: object, **__: object) -> bytes:
            self.children.append([])
            return b'{"reads": ["profiles/a..b"]}' if len(self.children) == 1 else b"{}"

    controller = Profiles()
    controller.requests = service = Learning()
    async with running(controller) as harness:
        await harness.stores.store(Profiles.shops.kind).create("shop", b'{"spec":{}}')
        await harness.run_until_idle()
        assert harness.runtime.status().failing == {}
    assert len(service.children) == 2


@pytest.mark.parametrize("value", ["1e999", r'"\ud83d"', r'"a\ud83db"'])
async def test_a_value_that_cannot_be_stored_is_refused_and_not_changed(value: str) -> None:
    class Odd(Service):
        async def request(self, *_: object, **__: object) -> bytes:
            return b'{"status": {"a": %s}}' % value.encode()

    controller = Profiles()
    controller.requests = Odd()
    async with running(controller) as harness:
        await harness.stores.store(Profiles.shops.kind).create("shop", b'{"spec":{}}')
        await harness.run_for(1)
        (error,) = harness.runtime.status().failing.values()
        assert error.startswith("HookError: hook shops.sync: not a valid answer: ")


def test_two_slots_of_one_bucket_are_refused_because_an_answer_names_the_bucket() -> None:
    class Twice(Shops):
        pages = secondary(kv(Page, bucket="pages", keys="a.>"))
        others = secondary(kv(Page, bucket="pages", keys="b.>"))

    with pytest.raises(UsageError, match="can't tell slots of one kind apart"):
        Twice()
