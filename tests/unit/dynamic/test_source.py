"""The event source of a dynamic watcher and its use as a queue source."""

import asyncio

from natsctl import Operation, kv
from natsctl.dynamic import (
    DynamicWatcher,
    GenericEvent,
    ObjectIdentifier,
    controller_runtime_source,
    kv_kind,
)
from natsctl.testing import running
from tests.support.controllers.app_controller import APPS, Apps
from tests.support.controllers.dynamic_dependents import limit, secret, watcher_called
from tests.support.stores.documents import put


async def test_reconciled_objects_are_events_of_the_source() -> None:
    reconciler, source = controller_runtime_source()
    await reconciler.reconcile(watcher_called("a"))
    await reconciler.reconcile(secret("b"))
    source.close()
    assert [event async for event in source] == [
        GenericEvent(watcher_called("a")),
        GenericEvent(secret("b")),
    ]


async def test_pending_events_of_an_object_are_merged() -> None:
    reconciler, source = controller_runtime_source()
    for _ in range(3):
        await reconciler.reconcile(watcher_called("a"))
    assert (await anext(source)).object == watcher_called("a")
    await reconciler.reconcile(watcher_called("a"))
    source.close()
    assert len([event async for event in source]) == 1


async def test_a_waiting_reader_gets_the_next_event() -> None:
    reconciler, source = controller_runtime_source()
    waiting = asyncio.create_task(anext(source))
    await asyncio.sleep(1)
    assert not waiting.done()
    await reconciler.reconcile(watcher_called("a"))
    assert (await waiting).object == watcher_called("a")


async def test_a_source_feeds_the_queue_of_a_controller() -> None:
    controller = Apps()
    async with running(controller) as harness:
        reconciler, source = controller_runtime_source()
        watcher = DynamicWatcher(reconciler, nats=harness.stores)
        tasks = [
            asyncio.create_task(watcher.start()),
            asyncio.create_task(
                source.feed(lambda key: harness.runtime.enqueue_key(key, Operation.SECONDARY))
            ),
        ]
        await watcher.started.wait()
        apps = kv_kind("apps")
        shop = ObjectIdentifier(
            group=apps.group, version=apps.version, kind=apps.kind, namespace="eu", name="shop"
        )
        await watcher.add_watcher(shop, limit("eu"))
        await put(harness.stores.store(APPS), "eu.shop", {"spec": {}})
        await harness.run_until_idle()
        controller.syncs.clear()
        await put(harness.stores.store(kv(bytes, bucket="limits")), "eu", {"spec": {}})
        await harness.run_until_idle()
        assert controller.syncs == ["eu.shop"]
        watcher.stop()
        source.close()
        await asyncio.gather(*tasks)
