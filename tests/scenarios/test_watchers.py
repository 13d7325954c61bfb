"""Watchers are called for every change, in order, and failed calls are retried."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from natsctl import Drop, PermanentError, Retry, RetryAfter, Stop, StoreTimeoutError, UsageError, kv
from natsctl.errors import InformerAlreadyAddedError
from natsctl.testing import MemoryStores
from natsctl.watchers import InformerController, ResourceAction, Snapshot
from tests.support.controllers.app_controller import edit
from tests.support.controllers.recording_watcher import (
    SITES,
    RecordingWatcher,
    Sites,
    running,
    site,
    text,
    watching,
)
from tests.support.stores.documents import put

SITE = SITES.name


def now() -> float:
    return asyncio.get_running_loop().time()


# ---- calls


async def test_changes_of_an_object_are_merged_if_too_many_wait(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsctl.watchers.resource_kind.CHANGES_MAX", 2)
    await put(sites, "athens", site("one"))
    recording = RecordingWatcher(takes_s=10)
    async with running(watching(recording), sites.stores):
        for content in ("two", "three", "four", "five"):
            await put(sites, "athens", site(content))
            await asyncio.sleep(1)
        await asyncio.sleep(100)
    assert recording.calls == [
        "add athens one",
        "update athens one two",
        "update athens two five",
    ]


async def test_changes_for_some_and_for_all_watchers_are_not_merged(
    sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("natsctl.watchers.resource_kind.CHANGES_MAX", 1)
    failing, slow = RecordingWatcher(failures=1), RecordingWatcher(takes_s=10)
    both = watching(failing, slow, retry_policy=lambda *_: Retry(1000.0))
    async with running(both, sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        both.resync("athens")  # calls the slow one again, and makes the retry of the other
        await put(sites, "athens", site("two"))
        await asyncio.sleep(100)
    assert slow.calls == ["add athens one", "add athens one", "update athens one two"]


async def test_an_object_waits_since_its_oldest_unanswered_change(sites: Sites) -> None:
    slow = watching(RecordingWatcher(takes_s=10))
    async with running(slow, sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        await put(sites, "athens", site("two"))
        await asyncio.sleep(10)  # the first call ended a second ago
        assert slow.status().oldest_unanswered_s == pytest.approx(1)


async def test_a_watcher_gets_an_add_for_existing_objects_and_then_every_change(
    sites: Sites,
) -> None:
    await put(sites, "athens", site("one"))
    recording = RecordingWatcher()
    async with running(watching(recording), sites.stores):
        for content in ("two", "three"):
            await put(sites, "athens", site(content))
        await sites.delete("athens")
        await asyncio.sleep(1)
    assert recording.calls == [
        "add athens one",
        "update athens one two",
        "update athens two three",
        "delete athens three",
    ]
    assert [snapshot.revision for snapshot in recording.seen] == [1, 2, 3, 3]


async def test_a_failing_watcher_does_not_delay_another(sites: Sites) -> None:
    failing, working = RecordingWatcher(), RecordingWatcher()
    failing.failures = 1
    async with running(watching(failing, working), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        assert failing.calls == ["add athens one fails"]
        assert working.calls == ["add athens one"]
        await asyncio.sleep(5)
    assert failing.calls == ["add athens one fails", "add athens one"]
    assert working.calls == ["add athens one"]


async def test_a_broken_watch_repeats_no_call_and_misses_no_change(sites: Sites) -> None:
    await put(sites, "athens", site("one"))
    await put(sites, "berlin", site("one"))
    recording = RecordingWatcher()
    async with running(watching(recording), sites.stores):
        sites.break_watches()
        await put(sites, "athens", site("two"))
        await sites.delete("berlin")
        await asyncio.sleep(10)
    assert sorted(recording.calls[2:]) == ["delete berlin one", "update athens one two"]


async def test_an_invalid_object_calls_the_error_handler(sites: Sites) -> None:
    recording, errors = RecordingWatcher(), list[Exception]()
    async with running(watching(recording, error_handler=errors.append), sites.stores):
        await put(sites, "athens", b"oops")
        await asyncio.sleep(1)
    assert recording.calls == []
    assert [type(error).__name__ for error in errors] == ["InvalidObjectError"]


async def test_every_change_calls_the_watchers_in_the_order_they_were_added(sites: Sites) -> None:
    calls: list[str] = []
    first, second = RecordingWatcher("first", calls), RecordingWatcher("second", calls)
    first.takes_s = 1
    async with running(watching(first, second), sites.stores):
        await put(sites, "athens", site("one"))
        await put(sites, "athens", site("two"))
        await asyncio.sleep(10)
    assert calls == [
        "first add athens one",
        "second add athens one",
        "first update athens one two",
        "second update athens one two",
    ]


# ---- add and remove


async def test_a_watcher_added_later_gets_an_add_of_the_newest_state(sites: Sites) -> None:
    await put(sites, "athens", site("one"))
    early, late = RecordingWatcher(), RecordingWatcher()
    running_controller = watching(early)
    async with running(running_controller, sites.stores):
        await put(sites, "athens", site("two"))
        await asyncio.sleep(1)
        running_controller.add_watcher(late, SITES)
        await put(sites, "athens", site("three"))
        await asyncio.sleep(1)
    assert late.calls == ["add athens two", "update athens two three"]
    assert early.calls[-1] == "update athens two three"


async def test_a_removed_watcher_gets_no_calls_and_no_retries(sites: Sites) -> None:
    removed, staying = RecordingWatcher(), RecordingWatcher()
    removed.failures = 100
    sites_controller = watching(removed, staying)
    async with running(sites_controller, sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        sites_controller.remove_watcher(removed, SITE)
        await put(sites, "athens", site("two"))
        await asyncio.sleep(60)
        assert sites_controller.idle
    assert removed.calls == ["add athens one fails"]
    assert staying.calls == ["add athens one", "update athens one two"]


async def test_all_watchers_of_a_resource_kind_can_be_removed(sites: Sites) -> None:
    first_watcher, second_watcher = RecordingWatcher(), RecordingWatcher()
    sites_controller = watching(first_watcher, second_watcher)
    async with running(sites_controller, sites.stores):
        sites_controller.remove_all_watchers_for_resource(SITES)
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
    assert first_watcher.calls == second_watcher.calls == []


# ---- retries


async def test_the_retry_delays_double_until_the_retries_end(sites: Sites) -> None:
    times: list[float] = []
    errors: list[Exception] = []
    recording = RecordingWatcher(failures=100)
    recording.error = lambda: (times.append(now()), ValueError("on purpose"))[1]  # type: ignore[func-returns-value]
    failing = watching(recording, error_handler=errors.append)
    async with running(failing, sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        assert failing.failing == {SITE: {"athens": "ValueError: on purpose"}}
        await asyncio.sleep(1000)
        assert failing.failing == {SITE: {}}
    gaps = [round(later - earlier) for earlier, later in pairwise(times)]
    assert gaps == [5, 10, 20, 40, 80, 160]
    assert len(errors) == 7


async def test_a_failed_call_is_shown_and_retried_by_a_resync_while_another_watcher_works(
    sites: Sites,
) -> None:
    failing, slow = RecordingWatcher(), RecordingWatcher()
    failing.failures, slow.takes_s = 1, 100.0
    both = watching(failing, slow, retry_policy=lambda *_: Retry(1000.0))
    async with running(both, sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        assert both.failing == {SITE: {"athens": "ValueError: on purpose"}}
        both.resync("athens")
        await asyncio.sleep(300)
    assert failing.calls == ["add athens one fails", "add athens one"]


async def test_the_retry_of_an_add_survives_a_status_write_and_a_relist(sites: Sites) -> None:
    recording = RecordingWatcher(failures=2)
    async with running(watching(recording), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        await edit(sites, "athens", "status", to={"seen": True})
        sites.break_watches()
        await asyncio.sleep(3)
        assert recording.calls == ["add athens one fails"]  # the retry is not earlier
        await asyncio.sleep(30)
    assert recording.calls == ["add athens one fails", "add athens one fails", "add athens one"]
    assert recording.seen[-1].revision == 2  # the retry has the newest object


async def test_a_failed_update_is_retried_even_if_the_object_is_back_to_its_old_state(
    sites: Sites,
) -> None:
    recording = RecordingWatcher()
    async with running(watching(recording, retry_dequeue_policy=lambda *_: False), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        recording.failures = 1
        await put(sites, "athens", site("two"))
        await asyncio.sleep(1)
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
    assert recording.calls[1:] == ["update athens one two fails", "update athens two one"]


async def test_a_delete_ends_every_retry(sites: Sites) -> None:
    recording = RecordingWatcher(failures=1)
    async with running(watching(recording), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        await sites.delete("athens")
        await asyncio.sleep(1000)
    assert recording.calls == ["add athens one fails", "delete athens one"]


async def test_the_retry_of_a_delete_precedes_the_add_of_the_recreated_object(sites: Sites) -> None:
    await put(sites, "athens", site("one"))
    recording = RecordingWatcher()
    async with running(watching(recording), sites.stores):
        recording.failures = 1
        await sites.delete("athens")
        await asyncio.sleep(1)
        await put(sites, "athens", site("two"))
        await put(sites, "athens", site("three"))
        await asyncio.sleep(60)
    assert recording.calls[1:] == [
        "delete athens one fails",
        "delete athens one",
        "add athens three",
    ]


async def test_a_resync_retries_a_failed_call_at_once_and_counts_its_failures_anew(
    sites: Sites,
) -> None:
    counted: list[int] = []

    def policy(_error: Exception, failures: int) -> Retry:
        counted.append(failures)
        return Retry(100.0)

    await put(sites, "athens", site("one"))
    recording = RecordingWatcher(failures=3)
    failing = watching(recording, retry_policy=policy)
    async with running(failing, sites.stores):
        await asyncio.sleep(150)
        assert failing.resync("athens") == 1
        await asyncio.sleep(1)
    assert recording.calls == ["add athens one fails"] * 3
    assert counted == [1, 2, 1]


async def test_the_dequeue_policy_gets_the_last_error(sites: Sites) -> None:
    decisions: list[tuple[str, str, str]] = []

    def keep(
        new: ResourceAction,
        new_object: Snapshot[Any],
        retry: ResourceAction,
        retry_object: Snapshot[Any],
        error: Exception,
    ) -> bool:
        decisions.append((f"{new} {text(new_object)}", f"{retry} {text(retry_object)}", str(error)))
        return False

    recording = RecordingWatcher(failures=3)
    errors = iter(["first", "second", "third"])
    recording.error = lambda: ValueError(next(errors))
    async with running(watching(recording, retry_dequeue_policy=keep), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        await put(sites, "athens", site("two"))
        await asyncio.sleep(1)
        await put(sites, "athens", site("three"))
        await asyncio.sleep(1000)
    assert decisions == [
        ("UPDATE two", "CREATE one", "first"),
        ("UPDATE three", "CREATE two", "second"),
    ]


async def test_a_policy_that_returns_stop_ends_the_controller_with_the_error(sites: Sites) -> None:
    await put(sites, "athens", site("one"))
    recording = RecordingWatcher(failures=1)
    stopping = watching(recording, retry_policy=lambda _error, _failures: Stop())
    stopping.use(nats=sites.stores)
    with pytest.raises(ValueError, match="on purpose"):
        await stopping.run()
    assert sites.watches == 0


async def test_retry_after_and_permanent_error_of_a_watcher_set_its_retry(sites: Sites) -> None:
    errors: list[Exception] = []
    for error, calls in ((RetryAfter(100.0), 2), (PermanentError("never"), 1)):
        recording = RecordingWatcher(failures=1)
        recording.error = lambda error=error: error  # type: ignore[misc]  # binds the loop variable
        async with running(watching(recording, error_handler=errors.append), sites.stores):
            await put(sites, "athens", site("one"))
            await asyncio.sleep(99)
            assert len(recording.calls) == 1
            await asyncio.sleep(1000)
        assert len(recording.calls) == calls
        await sites.delete("athens")
    assert [type(error) for error in errors] == [PermanentError]  # RetryAfter is not a failure


async def test_a_call_that_times_out_is_retried(sites: Sites) -> None:
    recording, errors = RecordingWatcher(), list[Exception]()
    recording.takes_s = 100
    async with running(
        watching(recording, timeout_s=10, error_handler=errors.append), sites.stores
    ):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(12)
        assert [str(error) for error in errors] == ["the call took longer than 10 s (timeout_s)"]
        recording.takes_s = 0
        await asyncio.sleep(10)
    assert recording.calls == ["add athens one"]


async def test_a_store_error_is_retried_after_a_relist_even_if_the_policy_drops_it(
    sites: Sites,
) -> None:
    recording = RecordingWatcher(failures=1)
    recording.error = lambda: StoreTimeoutError("no answer")
    async with running(
        watching(recording, retry_policy=lambda _error, _failures: Drop()), sites.stores
    ):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1000)
        assert recording.calls == ["add athens one fails"]
        sites.break_watches()
        await asyncio.sleep(1)
    assert recording.calls == ["add athens one fails", "add athens one"]


async def test_a_cancelled_error_of_a_watcher_is_a_failure(sites: Sites) -> None:
    errors: list[Exception] = []

    class Careless(RecordingWatcher):
        async def record(self, call: str, snapshot: Snapshot[Any]) -> None:
            if not self.calls:
                self.calls.append("waits")
                cancelled = asyncio.create_task(asyncio.sleep(1))
                cancelled.cancel()
                await cancelled
            await super().record(call, snapshot)

    recording = Careless()
    async with running(watching(recording, error_handler=errors.append), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(10)
    assert recording.calls == ["waits", "add athens one"]
    assert [str(error) for error in errors] == [
        "the handler waited for something that was cancelled"
    ]


async def test_a_failing_retry_policy_is_logged_and_the_call_is_retried(
    sites: Sites, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(error: Exception, failures: int) -> Drop:
        raise LookupError(f"{error} {failures}")

    recording = RecordingWatcher(failures=1)
    async with running(watching(recording, retry_policy=fails), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
    assert recording.calls == ["add athens one fails", "add athens one"]
    assert "the retry policy failed" in caplog.text
    assert "LookupError: on purpose 1" in caplog.text


async def test_one_slow_retry_does_not_delay_another(sites: Sites) -> None:
    done: dict[str, float] = {}

    class Slow(RecordingWatcher):
        async def record(self, call: str, snapshot: Snapshot[Any]) -> None:
            await super().record(call, snapshot)
            await asyncio.sleep(50 if snapshot.key == "athens" else 0)
            done[snapshot.key] = now()

    recording = Slow()
    recording.failures = 2
    async with running(watching(recording), sites.stores):
        await put(sites, "athens", site("one"))
        await put(sites, "berlin", site("one"))
        began = now()
        await asyncio.sleep(100)
    assert done["athens"] - began == pytest.approx(55, abs=1)
    assert done["berlin"] - began == pytest.approx(5, abs=1)


async def test_without_a_dequeue_policy_any_change_ends_a_retry(sites: Sites) -> None:
    recording = RecordingWatcher(failures=1)
    async with running(watching(recording, retry_dequeue_policy=None), sites.stores):
        await put(sites, "athens", site("one"))
        await asyncio.sleep(1)
        await edit(sites, "athens", "status", to={"seen": True})
        await asyncio.sleep(1000)
    assert recording.calls == ["add athens one fails", "update athens one one"]


# ---- selectors


async def test_an_informer_with_a_selector_adds_updates_and_deletes_matching_objects(
    sites: Sites,
) -> None:
    recording = RecordingWatcher()
    sites_controller = InformerController()
    sites_controller.add_informer(SITES, labels="region in (eu,us)")
    sites_controller.add_watcher(recording, SITES)
    async with running(sites_controller, sites.stores):
        await put(sites, "berlin", site("one", labels={"region": "eu"}))
        await put(sites, "delhi", site("one", labels={"region": "ap"}))
        await put(sites, "berlin", site("two", labels={"region": "us"}))
        await put(sites, "berlin", site("three", labels={"region": "ap"}))
        await put(sites, "delhi", site("two", labels={"region": "eu"}))
        await sites.delete("berlin")
        await asyncio.sleep(1)
    assert recording.calls == [
        "add berlin one",
        "update berlin one two",
        "delete berlin two",
        "add delhi two",
    ]


async def test_an_object_that_moves_between_informers_ends_with_an_add(sites: Sites) -> None:
    recording = RecordingWatcher()
    sites_controller = InformerController()
    for region in ("eu", "us"):
        sites_controller.add_informer(SITES, labels={"region": region})
    sites_controller.add_watcher(recording, SITES)
    async with running(sites_controller, sites.stores):
        for content, region in (("one", "eu"), ("two", "us"), ("three", "eu")):
            await put(sites, "berlin", site(content, labels={"region": region}))
            await asyncio.sleep(1)
            assert recording.calls[-1] == f"add berlin {content}"
        await sites.delete("berlin")
        await asyncio.sleep(1)
    assert recording.calls[-1] == "delete berlin three"


async def test_several_informers_of_one_kind_share_its_watchers(stores: MemoryStores) -> None:
    parts = [kv(SITES.type, bucket="sites", keys=keys) for keys in ("eu.*", "us.*")]
    recording = RecordingWatcher()
    sites_controller = InformerController()
    for part in parts:
        sites_controller.add_informer(part, "sites")
    sites_controller.add_watcher(recording, "sites")
    async with running(sites_controller, stores):
        for key in ("eu.berlin", "us.dallas", "ap.delhi"):
            await put(stores.store(SITES), key, site("one"))
        await asyncio.sleep(1)
    assert sorted(recording.calls) == ["add eu.berlin one", "add us.dallas one"]


# ---- start and stop


async def test_a_stop_waits_for_running_calls_up_to_stop_timeout_s(sites: Sites) -> None:
    for stop_timeout_s, finished in ((30, True), (5, False)):
        recording = RecordingWatcher(takes_s=10)
        async with running(watching(recording, stop_timeout_s=stop_timeout_s), sites.stores):
            await put(sites, "athens", site("one"))
            await asyncio.sleep(1)
        assert bool(recording.calls) is finished
        await sites.delete("athens")


async def test_a_controller_without_informers_kinds_or_connection_is_refused(sites: Sites) -> None:
    empty_controller = InformerController(nats=sites.stores)
    with pytest.raises(UsageError, match="nothing to watch"):
        await empty_controller.run()
    empty_controller.add_informer(SITES)
    empty_controller.add_watcher(RecordingWatcher(), "places")
    with pytest.raises(UsageError, match=r"watchers of places.*informers are of Site\.sites"):
        await empty_controller.run()
    nowhere = watching(RecordingWatcher())
    with pytest.raises(UsageError, match="stored in NATS"):
        await nowhere.run()


async def test_the_same_informer_cannot_be_added_twice() -> None:
    sites_controller = watching(RecordingWatcher())
    with pytest.raises(InformerAlreadyAddedError, match="exactly these objects"):
        sites_controller.add_informer(SITES)
    sites_controller.add_informer(SITES, labels={"region": "eu"})
    sites_controller.add_informer(SITES, "other")


async def test_a_running_controller_refuses_informers_and_unknown_kinds(sites: Sites) -> None:
    sites_controller = watching(RecordingWatcher())
    with pytest.raises(UsageError, match="has a name"):
        sites_controller.add_watcher(RecordingWatcher(), "")
    async with running(sites_controller, sites.stores):
        with pytest.raises(UsageError, match="add informers before"):
            sites_controller.add_informer(SITES, "other")
        with pytest.raises(UsageError, match=r"watchers of typo.*informers are of Site\.sites"):
            sites_controller.add_watcher(RecordingWatcher(), "typo")
        for unknown in ("typo", ""):
            sites_controller.remove_all_watchers_for_resource(unknown)
            sites_controller.remove_watcher(RecordingWatcher(), unknown)
        assert [queue.name for queue in sites_controller.measures().queues] == [SITE]
