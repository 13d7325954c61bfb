"""Resyncs and priorities, start and stop, and the output of explain, status and logs."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest

from natsctl import (
    Controller,
    ControllerRuntime,
    EventType,
    Operation,
    StoreTimeoutError,
    UsageError,
    kv,
    primary,
)
from natsctl.testing import MemoryStores, running
from tests.support.controllers.app_controller import Apps, edit, running_apps
from tests.support.stores.documents import put

Numbers = kv(dict[str, int], bucket="numbers")


class Slow(Controller):
    """A controller whose syncs take `delay_s`, and that records their times."""

    numbers = primary(Numbers)
    workers = 1
    resync_s = 1e9

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.begun: list[tuple[float, str]] = []
        self.ended: list[str] = []
        self.cut: list[str] = []
        self.cleaned = 0

    async def sync_handler(self, key: str) -> float | None:
        self.begun.append((asyncio.get_running_loop().time(), key))
        try:
            await asyncio.sleep(self.delay_s)
        except asyncio.CancelledError:
            self.cut.append(key)
            raise
        self.ended.append(key)
        return None

    async def clean(self) -> None:
        self.cleaned += 1

    def keys(self) -> list[str]:
        return [key for _, key in self.begun]


async def filled(count: int) -> MemoryStores:
    stores = MemoryStores()
    for number in range(count):
        await put(stores.store(Numbers), f"key-{number:05}", {"n": number})
    return stores


# ---- resyncs and priorities


class Resynced(Slow):
    resync_s = 600.0


async def test_a_resync_is_spread_over_its_interval_and_never_all_at_once() -> None:
    controller = Resynced()
    async with running(controller, stores=await filled(1200)) as harness:
        await harness.run_until_idle()
        controller.begun.clear()
        started = asyncio.get_running_loop().time()
        await asyncio.sleep(controller.resync_s)

        visits = Counter(controller.keys())
        assert len(visits) >= 1194  # all except those of the first and the last second
        assert set(visits.values()) <= {1, 2}
        per_second = Counter(int(time - started) for time, _ in controller.begun)
        assert len(per_second) >= 595
        assert max(per_second.values()) < 10  # two on average


async def test_every_key_is_resynced_one_interval_after_its_last_resync() -> None:
    controller = Resynced()
    async with running(controller, stores=await filled(100)) as harness:
        await harness.run_until_idle()
        await asyncio.sleep(controller.resync_s)
        controller.begun.clear()
        await asyncio.sleep(5 * controller.resync_s)

    times: dict[str, list[float]] = {}
    for time, key in controller.begun:
        times.setdefault(key, []).append(time)
    gaps = {round(later - time, 3) for visits in times.values() for time, later in pairwise(visits)}
    assert len(times) == 100
    assert gaps == {controller.resync_s}


async def test_the_first_resync_of_a_key_is_one_interval_after_a_long_start() -> None:
    controller, keys = Resynced(delay_s=1.0), [f"key-{number:05}" for number in range(60)]
    async with running(controller, stores=await filled(len(keys))):
        await asyncio.sleep(len(keys) + 1.5)
        assert Counter(controller.ended) == dict.fromkeys(keys, 1)
        await asyncio.sleep(controller.resync_s + 3.5)
        assert min(Counter(controller.ended).values()) == 2


async def test_a_change_overtakes_the_keys_of_the_first_listing() -> None:
    controller = Slow(delay_s=0.002)
    async with running(controller, stores=await filled(1000)) as harness:
        await asyncio.sleep(1)
        assert len(controller.begun) < 600
        changed = asyncio.get_running_loop().time()
        await put(harness.stores.store(Numbers), "key-00999", {"n": -1})
        await asyncio.sleep(0.01)

        time, _ = next(begun for begun in controller.begun if begun[1] == "key-00999")
        assert time - changed < 0.005


async def test_changes_precede_secondary_changes_and_those_precede_resyncs() -> None:
    class Deliberate(Apps):
        workers = 1

        async def sync_handler(self, key: str) -> float | None:
            await super().sync_handler(key)
            await asyncio.sleep(1)
            return None

    controller = Deliberate()
    async with running_apps(controller) as client:
        for key in ("busy", "resynced", "tampered", "changed"):
            await client.app(key)
        await client.idle()
        controller.syncs.clear()
        client.runtime.enqueue_key("busy", Operation.MANUAL)
        await asyncio.sleep(0.5)
        client.runtime.enqueue_key("resynced", Operation.RESYNC)
        await edit(client.parts, "tampered.main", "spec", "text", to="tampered")
        await client.app("changed", "bye")
        await client.idle()

        assert controller.syncs == ["busy", "changed", "tampered", "resynced"]


async def test_a_delayed_key_is_synced_at_its_time_even_if_synced_earlier() -> None:
    controller = Slow()
    async with running(controller, stores=await filled(1)) as harness:
        await harness.run_until_idle()
        controller.begun.clear()
        begun = asyncio.get_running_loop().time()
        harness.runtime.enqueue_key_after("key-00000", Operation.MANUAL, 50.0)
        queued = harness.runtime.explain("key-00000").queued
        assert queued is not None
        assert (queued.place, queued.s, queued.priority) == ("waiting", 50.0, "")
        await asyncio.sleep(20)
        harness.runtime.enqueue_key("key-00000", Operation.MANUAL)
        await asyncio.sleep(40)

        assert [time - begun for time, _ in controller.begun] == pytest.approx([20.0, 50.0])


# ---- start and stop


async def test_a_stop_finishes_running_syncs_and_starts_no_other() -> None:
    controller = Slow(delay_s=10.0)
    async with running(controller, stores=await filled(5)) as harness:
        await asyncio.sleep(1)
        queued = [harness.runtime.explain(f"key-0000{number}").queued for number in (0, 1)]
        assert [entry and entry.place for entry in queued] == ["held", "ready"]
    assert asyncio.get_running_loop().time() == pytest.approx(10.0, abs=0.1)
    assert controller.ended == controller.keys() == ["key-00000"]
    assert (controller.cut, controller.cleaned) == ([], 1)


async def test_a_stop_cancels_syncs_after_stop_timeout_s_which_the_next_runtime_repeats(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller, stores = Slow(delay_s=50.0), await filled(5)
    runtime = ControllerRuntime(controller, nats=stores, stop_timeout_s=5.0)
    task = asyncio.create_task(runtime.run())
    await asyncio.sleep(1)
    runtime.stop()
    await task

    assert asyncio.get_running_loop().time() == pytest.approx(6.0, abs=0.1)
    assert (controller.cut, controller.ended, controller.cleaned) == (["key-00000"], [], 1)
    assert stores.store(Numbers).watches == 0
    assert any(
        "cancelling syncs that did not end in time" in record.message for record in caplog.records
    )
    assert len(asyncio.all_tasks()) == 1
    async with running(following := Slow(), stores=stores) as harness:
        await harness.run_until_idle()
        assert following.ended == [f"key-0000{number}" for number in range(5)]


async def test_a_cancelled_runtime_calls_clean() -> None:
    controller, stores = Slow(delay_s=50.0), await filled(1)
    task = asyncio.create_task(ControllerRuntime(controller, nats=stores).run())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (controller.cut, controller.cleaned) == (["key-00000"], 1)
    assert stores.store(Numbers).watches == 0


async def test_start_is_called_after_the_caches_are_synced_and_before_the_first_sync() -> None:
    class Prepared(Slow):
        seen: int | None = None

        async def start(self) -> None:
            self.seen = len(self.numbers.keys())
            await asyncio.sleep(10)
            assert self.begun == []

    controller = Prepared()
    async with running(controller, stores=await filled(3)) as harness:
        await harness.run_until_idle()
        assert controller.seen == 3
        assert [time for time, _ in controller.begun] == [10.0] * 3


async def test_a_controller_can_be_stopped_during_its_start() -> None:
    class Waiting(Slow):
        async def start(self) -> None:
            await asyncio.Event().wait()

    runtime = ControllerRuntime(Waiting(), nats=MemoryStores())
    task = asyncio.create_task(runtime.run())
    await asyncio.sleep(1)
    runtime.stop()
    await task


async def test_a_controller_needs_exactly_one_primary() -> None:
    class Nothing(Controller):
        pass

    class Two(Slow):
        others = primary(kv(dict, bucket="others"))

    with pytest.raises(UsageError, match=r"exactly one primary.*has none"):
        ControllerRuntime(Nothing(), nats=MemoryStores())
    with pytest.raises(UsageError, match="numbers, others"):
        ControllerRuntime(Two(), nats=MemoryStores())


async def test_a_slot_cannot_be_used_before_a_runtime_opens_it() -> None:
    with pytest.raises(UsageError, match="a ControllerRuntime opens it"):
        Slow().numbers.get("a")


# ---- explain, status, events and logs


async def test_explain_has_the_last_sync_and_the_owned_objects_of_a_key() -> None:
    async with running_apps(Apps()) as client:
        revision = await client.app("shop", parts=("a", "b"))
        await client.idle()
        explanation = client.runtime.explain("shop")

        (sync,) = explanation.syncs
        assert (sync.operation, sync.revision, sync.error) == ("put", revision, "")
        assert (sync.created, sync.updated, sync.deleted) == (2, 0, 0)
        assert (explanation.exists, explanation.invalid) == (True, "")
        assert explanation.revision == revision + 1  # after the write of the status
        assert explanation.owned == {"Part.parts": ["shop.a", "shop.b"]}
        assert (explanation.queued, explanation.failures) == (None, 0)
        tree, missing = client.runtime.tree("shop"), client.runtime.tree("none")
        assert (tree.kind, tree.key, tree.revision) == ("App.apps", "shop", revision + 1)
        assert [(part.kind, part.key) for part in tree.branches] == [
            ("Part.parts", "shop.a"),
            ("Part.parts", "shop.b"),
        ]
        assert (missing.kind, missing.key, missing.branches) == ("App.apps", "none", ())


async def test_status_has_failing_and_invalid_keys_counts_and_queue() -> None:
    class Picky(Apps):
        async def sync_handler(self, key: str) -> float | None:
            await super().sync_handler(key)
            if key == "failing":
                raise StoreTimeoutError("the external system does not respond")
            return None

    async with running_apps(Picky()) as client:
        for key in ("good", "failing"):
            await client.app(key)
        await put(client.apps, "invalid", b"oops")
        await asyncio.sleep(10)
        client.parts.break_watches()
        await asyncio.sleep(10)
        status = client.runtime.status()

        assert (status.controller, status.synced, status.primaries) == ("picky", True, 2)
        assert status.failing == {
            "failing": "StoreTimeoutError: the external system does not respond"
        }
        assert list(status.invalid) == ["invalid"]
        assert status.syncs == status.failures + 1
        assert status.watch_restarts == 1
        assert (status.queue.depth, status.queue.waiting, status.queue.held) == (0, 1, 0)  # type: ignore[union-attr]


async def test_a_controller_can_record_events_of_its_keys() -> None:
    class Talkative(Apps):
        async def sync_handler(self, key: str) -> float | None:
            self.runtime.event(key, EventType.NORMAL, "Noted", f"{key} was noted")
            return None

    async with running_apps(Talkative(), "shop") as client:
        assert client.events("shop") == [("Noted", "shop was noted")]


async def test_the_name_defaults_to_the_class_name() -> None:
    class Named(Slow):
        name = "something-else"

    assert (Slow().name, Named().name) == ("slow", "something-else")


async def test_explain_keeps_the_last_five_syncs_with_their_reasons() -> None:
    async with running_apps(Apps()) as client:
        await client.app("shop", "1")
        await client.idle()
        await client.app("shop", "2")
        await client.idle()
        await client.parts.delete("shop.main")
        await client.idle()
        client.runtime.resync()
        await client.idle()
        client.runtime.enqueue_key("shop", Operation.MANUAL)
        await client.idle()
        await client.apps.delete("shop")
        await client.idle()
        explanation = client.runtime.explain("shop")

        reasons = [sync.operation for sync in explanation.syncs]
        assert reasons == ["put", "secondary", "resync", "manual", "delete"]
        counts = [(sync.created, sync.updated, sync.deleted) for sync in explanation.syncs]
        assert counts == [(0, 1, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 1)]
        assert (explanation.exists, explanation.revision) == (False, None)
        assert explanation.owned == {"Part.parts": []}
