"""Streams and consumers that objects in buckets declare, on a real nats-server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from controllers.streams import OWNER, Consumers, Streams
from natsctl import ControllerRuntime, kv
from natsctl.errors import ConflictError, NotFoundError
from natsctl.model.store import Store
from tests.support.clients.nats import Nats
from tests.support.eventually import eventually
from tests.support.stores.documents import delete, parse, render

ORDERS = {"subjects": ["orders.>"]}


class Site:
    """The buckets and streams of a server with both controllers."""

    def __init__(self, nats: Nats, streams: Store, consumers: Store) -> None:
        self.nats = nats
        self.streams = streams
        self.consumers = consumers

    async def put(self, store: Store, key: str, **spec: object) -> None:
        """Write the spec, and retry if a controller wrote the object first."""
        while True:
            with suppress(ConflictError):
                try:
                    stored = await store.get(key)
                except NotFoundError:
                    await store.create(key, render({"spec": spec}))
                else:
                    value = render({**parse(stored.value), "spec": spec})
                    await store.update(key, value, revision=stored.revision)
                return

    async def becomes(self, store: Store, key: str, text: str, name: str = "Synced") -> None:
        """Wait until this condition of the object contains the text."""

        async def contains() -> bool:
            conditions = parse((await store.get(key)).value).get("status", {}).get("conditions", ())
            (found,) = [one for one in conditions if one["type"] == name] or [{}]
            assert text in f"{found.get('status')} {found.get('message', '')}"
            return True

        await eventually(contains)

    async def config(self, name: str) -> dict[str, Any]:
        """Return the configuration of a stream, or of a consumer `STREAM.NAME`."""
        kind = "CONSUMER" if "." in name else "STREAM"
        config: dict[str, Any] = (await self.nats.api(f"{kind}.INFO.{name}"))["config"]
        return config

    async def has(self, name: str, **options: object) -> None:
        """Wait until the configuration has these options."""

        async def has_options() -> bool:
            config = await self.config(name)
            assert {option: config.get(option) for option in options} == options
            return True

        await eventually(has_options)


@pytest.fixture
async def site(nats: Nats) -> AsyncIterator[Site]:
    async with asyncio.TaskGroup() as group:
        runtimes = [ControllerRuntime(one, nats=nats) for one in (Streams(), Consumers())]
        for runtime in runtimes:
            group.create_task(runtime.run())
            await eventually(runtime.synced.is_set)
        streams, consumers = (kv(bytes, bucket=bucket) for bucket in ("streams", "consumers"))
        yield Site(nats, await nats.open(streams), await nats.open(consumers))
        for runtime in runtimes:
            runtime.stop()


async def test_a_stream_and_its_consumer_follow_their_objects(site: Site) -> None:
    config = {"filter_subject": "orders.paid", "ack_wait": 5 * 10**9}
    await site.put(site.consumers, "billing", stream="orders", config=config)
    await site.becomes(site.consumers, "billing", "stream not found")
    await site.put(site.streams, "orders", config={**ORDERS, "max_age": 86_400 * 10**9})
    await site.becomes(site.streams, "orders", "True", "Ready")
    await site.has("orders", **ORDERS, max_age=86_400 * 10**9)
    assert (await site.config("orders"))["metadata"][OWNER] == "streams/orders"
    await site.becomes(site.consumers, "billing", "True")
    await site.has("orders.billing", durable_name="billing", **config)
    await site.put(site.streams, "orders", config={"subjects": ["orders.>", "back.>"]})
    await site.has("orders", subjects=["orders.>", "back.>"])
    config = {"filter_subject": "orders.due", "ack_wait": 7 * 10**9}
    await site.put(site.consumers, "billing", stream="orders", config=config)
    await site.has("orders.billing", **config)
    for store, key in ((site.consumers, "billing"), (site.streams, "orders")):

        async def is_deleted(store: Store = store, key: str = key) -> bool:
            with suppress(NotFoundError):
                await store.get(key)
                return False
            return True

        await delete(store, key)
        await eventually(is_deleted)
    assert "orders" not in ((await site.nats.api("STREAM.NAMES"))["streams"] or [])


async def test_a_refused_name_or_change_is_reported_and_other_options_are_kept(site: Site) -> None:
    await site.put(site.streams, "team.orders", config=ORDERS)
    await site.becomes(site.streams, "team.orders", "set spec.name")
    await site.put(site.streams, "team.orders", name="orders", config=ORDERS)
    await site.becomes(site.streams, "team.orders", "True")
    by_hand = {**await site.config("orders"), "description": "by hand"}
    await site.nats.api("STREAM.UPDATE.orders", by_hand)
    immutable = {"storage": "memory", "retention": "workqueue", "mirror": {"name": "other"}}
    for field, value in immutable.items():
        await site.put(site.streams, "team.orders", name="orders", config={**ORDERS, field: value})
        await site.becomes(site.streams, "team.orders", f"cannot change {field}")
    await site.put(site.streams, "team.orders", name="orders", config={**ORDERS, "max_msgs": 10})
    await site.becomes(site.streams, "team.orders", "True")
    await site.has("orders", max_msgs=10, description="by hand", retention="limits")


async def test_a_sync_without_a_difference_writes_nothing(site: Site) -> None:
    limits = {"max_msgs": 0, "max_bytes": -1, "max_age": 0, "discard": "old", "num_replicas": 1}
    await site.put(site.streams, "orders", config={**ORDERS, **limits})
    await site.put(site.consumers, "billing", stream="orders", config={"ack_policy": "explicit"})
    await site.becomes(site.streams, "orders", "True", "Ready")
    await site.becomes(site.consumers, "billing", "True", "Ready")
    stores = {"orders": site.streams, "billing": site.consumers}
    before = {key: await store.get(key) for key, store in stores.items()}
    for controller, key in ((Streams(), "orders"), (Consumers(), "billing")):
        runtime = ControllerRuntime(controller, nats=site.nats)
        async with runtime.opened():
            await runtime.complete()
            await controller.start()
            assert await runtime.sync(key) == 60
    assert {key: await store.get(key) for key, store in stores.items()} == before
