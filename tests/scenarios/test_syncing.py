"""The changes that cause a sync, and the retries, delays and failures after a sync."""

import asyncio
import logging
import math
from collections import Counter

import pytest

from natsctl import (
    ControllerRuntime,
    Operation,
    PermanentError,
    RateLimit,
    RetryAfter,
    Stop,
    StoreTimeoutError,
    UsageError,
    give_up_after,
)
from natsctl.testing import MemoryStores, running
from tests.support.controllers.app_controller import (
    APPS,
    App,
    Apps,
    Calm,
    Fallible,
    Part,
    PartSpec,
    SlowStores,
    app_client,
    document,
    edit,
    running_apps,
)

AN_HOUR = 3600.0


class Configurable(Fallible):
    """A controller that can wait, fail or return a delay after its work."""

    resync_s = Apps.resync_s
    back_after_s: float | None = None

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    async def sync_handler(self, key: str) -> float | None:
        self.times.append(asyncio.get_running_loop().time())
        await super().sync_handler(key)
        return self.back_after_s

    @property
    def gaps(self) -> list[float]:
        """The seconds between the starts of syncs."""
        return [later - sooner for sooner, later in zip(self.times, self.times[1:], strict=False)]


# ---- rate limits


async def test_the_rate_limit_bounds_the_start_of_syncs() -> None:
    class Slow(Configurable):
        rate_limit = RateLimit(qps=10, burst=5)
        workers = 20

    controller = Slow()
    async with running_apps(controller) as client:
        for number in range(25):
            await client.app(f"shop{number}")
        began = asyncio.get_running_loop().time()
        await client.idle()
        assert len(controller.times) == 25
        assert controller.times[-1] - began == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize(
    ("qps", "burst"),
    [(0, 1), (-1, 1), (float("inf"), 1), (float("nan"), 1), (1, 0), (1, 1.5), ("1", 1), (True, 1)],
)
def test_an_invalid_rate_limit_is_refused(qps: float, burst: int) -> None:
    with pytest.raises(UsageError, match="a rate limit needs"):
        RateLimit(qps=qps, burst=burst)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(("workers", value, "must be a whole number") for value in (0, 10_001, 1.0, True, "1")),
        *(("resync_s", value, "resync_s is") for value in (0, -1, math.inf, math.nan, True, "1")),
        ("version", b"a", "version is"),
        ("worker", 5, "worker = 5 is not an option; did you mean workers"),
        ("resync", 5, "did you mean resync_s"),
        *(("rate_limit", value, "must be RateLimit") for value in (5, "fast", (10, 5))),
    ],
)
def test_an_option_that_is_wrong_or_misspelt_is_refused(
    name: str, value: object, message: str
) -> None:
    wrong = type("Wrong", (type("Parent", (Apps,), {name: value}),), {})
    for _ in range(2):
        with pytest.raises(UsageError, match=message):
            ControllerRuntime(wrong(), nats=MemoryStores())


# ---- changes that cause a sync


async def test_only_resyncs_and_restarts_sync_after_convergence_and_they_write_nothing() -> None:
    controller = Apps()
    async with running_apps(controller) as client:
        keys = [f"app-{number}" for number in range(50)]
        for key in keys:
            await client.app(key, parts=("a", "b"))
        await client.idle()
        assert Counter(controller.syncs) == dict.fromkeys(keys, 1)
        controller.syncs.clear()
        assert client.writes == 50 * (1 + 2 + 1)  # the user's put, the parts, the status
        await asyncio.sleep(AN_HOUR)

        assert client.writes == 200
        resyncs = Counter(controller.syncs)
        assert resyncs.keys() == set(keys)
        assert set(resyncs.values()) == {5}  # one every ten minutes, except the first
        last = client.runtime.explain("app-0").syncs
        assert [sync.operation for sync in last] == ["resync"] * 5
    restarted = Apps()
    async with running(restarted, stores=client.stores) as harness:
        await harness.run_until_idle()
        assert (Counter(restarted.syncs), client.writes) == (dict.fromkeys(keys, 1), 200)


async def test_several_writes_of_a_secondary_in_a_sync_cause_no_further_sync() -> None:
    class Thorough(Apps):
        async def sync_handler(self, key: str) -> float | None:
            self.syncs.append(key)
            if self.apps.get(key) is not None and self.parts.get(key) is None:
                await self.parts.apply(key, Part(spec=PartSpec("prepared")))
                await self.parts.delete(key)
                await self.parts.apply(key, Part(spec=PartSpec("ready")))
            return None

    controller = Thorough()
    async with running_apps(controller, "shop") as client:
        assert await client.texts() == {"shop": "ready"}
        assert controller.syncs == ["shop"]


@pytest.mark.parametrize(
    ("path", "value", "syncs"),
    [
        (("status", "parts"), 0, 1),
        (("metadata", "finalizers"), ["theirs"], 1),
        (("spec", "text"), "hi", 1),
        (("spec", "note"), "of another version", 2),
    ],
)
async def test_only_a_change_of_the_desired_state_by_others_causes_a_sync(
    path: tuple[str, str], value: object, syncs: int
) -> None:
    controller = Apps()
    async with running_apps(controller, "shop") as client:
        await edit(client.apps, "shop", *path, to=value)
        await client.idle()

        assert controller.syncs == ["shop"] * syncs
        assert (await document(client.apps, "shop"))[path[0]][path[1]] == value


async def test_an_object_that_fell_back_to_an_older_state_gets_its_status_again() -> None:
    async with running_apps(Calm()) as client:
        await client.app("shop")
        before = client.apps.backup()
        await client.idle()
        assert (await document(client.apps, "shop"))["status"] == {"parts": 1}
        client.apps.restore(before)  # its spec is the same
        assert "status" not in await document(client.apps, "shop")
        await client.idle()
        assert (await document(client.apps, "shop"))["status"] == {"parts": 1}


async def test_a_status_that_the_server_loses_before_it_is_watched_is_written_again() -> None:
    class Unlucky(Calm):
        async def sync_handler(self, key: str) -> float | None:
            before = apps.backup()
            await super().sync_handler(key)
            if len(self.syncs) == 1:
                apps.restore(before)
                apps.cut()
            return None

    stores = SlowStores()
    apps = stores.store(APPS)
    async with running_apps(Unlucky(), stores=stores) as client:
        await client.app("shop")
        await client.idle()
        assert (await document(apps, "shop"))["status"] == {"parts": 1}


async def test_changes_during_a_sync_cause_one_sync_of_the_newest_state() -> None:
    controller = Configurable()
    controller.delay_s = 10.0
    async with running_apps(controller) as client:
        await client.app("shop", "1")
        await asyncio.sleep(1)
        for text in "2345":
            await client.app("shop", text)
        await client.idle()

        assert len(controller.syncs) == 2
        assert await client.texts() == {"shop.main": "5"}


# ---- retries, delays and failures


async def test_a_failing_handler_is_retried_with_backoff() -> None:
    controller = Configurable()
    controller.failure = RuntimeError("not yet")
    async with running_apps(controller) as client:
        await client.app("shop")
        await asyncio.sleep(5)

        for sooner, later in zip(controller.gaps, controller.gaps[1:], strict=False):
            assert 1.8 < later / sooner < 2.3  # doubled, with jitter
        explanation = client.runtime.explain("shop")
        assert explanation.failures == len(controller.times)
        assert explanation.syncs[-1].error == "RuntimeError: not yet"
        assert explanation.queued is not None
        assert explanation.queued.place == "waiting"
        assert client.reasons("shop")[:2] == ["SyncFailed", "SyncFailed"]

        controller.failure = None
        await client.idle()
        assert client.runtime.explain("shop").failures == 0
        assert client.runtime.status().failing == {}


@pytest.mark.parametrize("raises", [True, False])
async def test_retry_after_and_a_returned_delay_requeue_without_a_failure(*, raises: bool) -> None:
    controller = Configurable()
    if raises:
        controller.failure = RetryAfter(30.0)
    else:
        controller.back_after_s = 30.0
    async with running_apps(controller) as client:
        await client.app("shop")
        await asyncio.sleep(100)

        assert controller.gaps == [30.0, 30.0, 30.0]
        assert client.runtime.explain("shop").failures == 0
        assert "SyncFailed" not in client.reasons("shop")


async def test_a_handler_that_times_out_fails_and_is_retried() -> None:
    class Hasty(Configurable):
        sync_timeout_s = 5.0

    controller = Hasty()
    controller.delay_s = 60.0
    async with running_apps(controller) as client:
        await client.app("shop")
        await asyncio.sleep(6)
        assert len(controller.times) == 2
        assert "TimeoutError" in client.runtime.explain("shop").syncs[0].error
        assert client.runtime.explain("shop").syncs[0].duration_s == 5.0
        queued = client.runtime.explain("shop").queued
        assert queued is not None
        assert queued.place == "held"

        controller.delay_s = 0.0
        await client.idle()
        assert client.runtime.status().failing == {}


async def test_a_permanent_failure_is_not_retried_until_the_object_changes() -> None:
    controller = Configurable()
    controller.failure = PermanentError("no such region")
    async with running_apps(controller, "shop") as client:
        await client.parts.delete("shop.main")
        await edit(client.apps, "shop", "status", "seen", to=True)
        client.runtime.enqueue_key("shop", Operation.RESYNC)
        await asyncio.sleep(AN_HOUR)
        assert len(controller.syncs) == 1
        assert client.runtime.status().failing == {"shop": "PermanentError: no such region"}

        controller.failure = None
        for text in ("bye", "hi"):
            await edit(client.apps, "shop", "spec", "text", to=text)
            await client.idle()
            assert await client.texts() == {"shop.main": text}
        assert client.runtime.status().failing == {}

        controller.failure = PermanentError("no such region")
        await client.app("shop", "again")
        await client.idle()
        controller.failure = None
        await client.apps.delete("shop")
        await client.idle()
        assert (client.part_keys, client.runtime.status().failing) == ([], {})


async def test_a_manual_sync_is_kept_if_a_resync_is_added() -> None:
    controller = Configurable()
    controller.failure = PermanentError("no such region")
    async with running_apps(controller, "shop") as client:
        client.runtime.enqueue_key("shop", Operation.MANUAL)
        client.runtime.resync()
        client.runtime.enqueue_key("shop", Operation.SECONDARY)
        await client.idle()

        assert [sync.operation for sync in client.runtime.explain("shop").syncs] == [
            "put",
            "manual",
        ]


async def test_the_last_state_of_a_deleted_object_is_kept_until_its_sync_succeeds() -> None:
    controller = Configurable()
    async with running_apps(controller, "shop") as client:
        controller.failure = RuntimeError("no")
        await client.apps.delete("shop")
        await asyncio.sleep(1)
        noted = controller.apps.queue.noted("shop")
        assert noted is not None
        assert noted.last is not None
        controller.failure = None
        await client.idle()
        assert controller.apps.queue.noted("shop") is None


async def test_a_retry_policy_can_drop_a_key() -> None:
    class Impatient(Configurable):
        retry = give_up_after(2)  # type: ignore[assignment]

    controller = Impatient()
    controller.failure = RuntimeError("no")
    async with running_apps(controller, "shop") as client:
        assert len(controller.syncs) == 3

        controller.failure = None
        await client.app("shop", "bye")
        await client.idle()
        assert client.runtime.status().failing == {}


async def test_a_retry_policy_can_stop_the_runtime() -> None:
    class Strict(Configurable):
        retry = staticmethod(lambda error, failures: Stop())

    controller = Strict()
    controller.failure = RuntimeError("no")
    async with running_apps(controller) as client:
        await client.app("shop")
        await asyncio.sleep(1)
        assert client.apps.watches == 0  # the runtime has stopped


async def test_only_unexpected_errors_are_logged_with_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = Configurable()
    async with running(controller) as harness:
        for failure in (ZeroDivisionError("oops"), StoreTimeoutError("no answer")):
            controller.failure = failure
            await app_client(harness).app("shop", str(failure))
            await asyncio.sleep(0.001)
            controller.failure = None
            await harness.run_until_idle()

    logged = [
        (record.message.partition("error=")[2], bool(record.exc_info))
        for record in caplog.records
        if record.levelno == logging.ERROR
    ]
    assert logged == [
        ("'ZeroDivisionError: oops'", True),
        ("'StoreTimeoutError: no answer'", False),
    ]


async def test_the_last_state_of_a_recreated_key_is_the_new_object() -> None:
    class Busy(Apps):
        workers = 1

        def __init__(self) -> None:
            super().__init__()
            self.released = asyncio.Event()
            self.last: list[App | None] = []

        async def sync_handler(self, key: str) -> float | None:
            if key == "busy":
                await self.released.wait()
            else:
                self.last.append(await self.apps.last(key))
            return None

    controller = Busy()
    async with running_apps(controller) as client:
        await client.app("shop", "first")
        await client.idle()
        await client.app("busy")
        await asyncio.sleep(1)
        await client.apps.delete("shop")
        await client.app("shop", "second")
        await asyncio.sleep(1)
        controller.released.set()
        await client.idle()
        last = controller.last[-1]
        assert last is not None
        assert last.spec.text == "second"


async def test_a_sync_outside_of_the_loop_is_refused_while_a_worker_may_have_the_key() -> None:
    async with running(Configurable()) as harness:
        await app_client(harness).app("shop")
        await harness.run_until_idle()
        with pytest.raises(UsageError, match="runs: call resync"):
            await harness.runtime.sync("shop")
    async with harness.runtime.opened():
        await harness.runtime.complete()
        assert await harness.runtime.sync("shop") is None
