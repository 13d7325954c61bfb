"""The history of syncs: what the journal keeps, which events are recorded, which failures count."""

import asyncio
import math
from datetime import UTC, datetime

import pytest

from natsctl import EventType, Reference
from natsctl.core.history import (
    PAST_S,
    REASON_EXISTS,
    REASON_FAILED,
    REASON_SYNCED,
    SyncHistory,
)
from natsctl.core.recording.recordings import KeptSync, Recordings
from natsctl.core.sync import Sync
from natsctl.core.tape import KeysStep, RecordedError, StoreStep, Tape
from natsctl.core.workqueue import WorkQueue
from natsctl.errors import ExistsError, NatsctlError, RetryAfter, StoreError, StoreTimeoutError
from natsctl.model.recorder import SyncNote
from natsctl.model.store import Stored
from natsctl.testing import MemoryRecorder
from tests.support.places import take_nowait

SHOP = Reference("v1", "ConfigMap", "shop", "default")
STORED, LAST = Stored("shop", 7, b"{}"), Stored("shop", 5, b"{}")


@pytest.fixture
def recorder() -> MemoryRecorder:
    return MemoryRecorder()


@pytest.fixture
async def history(recorder: MemoryRecorder) -> SyncHistory:
    """Return a history at another time than zero, so that a duration is no time."""
    await asyncio.sleep(100)
    history = SyncHistory("apps")
    history.recorders = (recorder,)
    return history


def begin(history: SyncHistory, **writes: int) -> Sync:
    """Begin a sync that has made these writes."""
    run = history.begin("shop", "put", STORED)
    for name, count in writes.items():
        setattr(run, name, count)
    return run


def now() -> float:
    return asyncio.get_running_loop().time()


class TestSuccesses:
    async def test_the_journal_has_the_sync(self, history: SyncHistory) -> None:
        run = begin(history, created=1, updated=2, deleted=3)
        await asyncio.sleep(5)
        history.succeeded(run, now(), failed=False)
        [sync] = history.journal.last_syncs("shop")
        assert (sync.operation, sync.revision, sync.error) == ("put", 7, "")
        assert (sync.created, sync.updated, sync.deleted) == (1, 2, 3)
        assert sync.duration_s == 5

    async def test_a_sync_that_wrote_nothing_is_no_event(
        self, history: SyncHistory, recorder: MemoryRecorder
    ) -> None:
        history.succeeded(begin(history), now(), failed=False)
        assert recorder.events == []

    @pytest.mark.parametrize(
        ("writes", "text"),
        [
            ({"created": 1, "updated": 1}, "(created)"),
            ({"updated": 1, "deleted": 1}, "(updated)"),
            ({"updated": 1}, "(updated)"),
            ({"deleted": 1}, "(deleted)"),
        ],
    )
    async def test_a_sync_that_wrote_is_an_event(
        self, history: SyncHistory, recorder: MemoryRecorder, writes: dict[str, int], text: str
    ) -> None:
        history.succeeded(begin(history, **writes), now(), failed=False)
        [event] = recorder.events
        assert (event.key, event.type, event.reason) == ("shop", EventType.NORMAL, REASON_SYNCED)
        assert event.message.endswith(text)

    async def test_a_success_after_a_failure_is_an_event(
        self, history: SyncHistory, recorder: MemoryRecorder
    ) -> None:
        history.succeeded(begin(history), now(), failed=True)
        assert recorder.events[0].message.endswith("(after failures)")

    async def test_an_event_regards_the_objects_that_the_sync_wrote(
        self, history: SyncHistory, recorder: MemoryRecorder
    ) -> None:
        run = begin(history, created=1)
        run.touched += (SHOP,)
        history.succeeded(run, now(), failed=False)
        assert recorder.events[0].regarding == (SHOP,)

    async def test_an_event_has_the_sync(
        self, history: SyncHistory, recorder: MemoryRecorder
    ) -> None:
        run = history.begin("shop", "put", STORED, handler="on_change")
        run.created, run.updated, run.deleted = 1, 2, 3
        await asyncio.sleep(5)
        history.succeeded(run, now(), failed=False)
        assert recorder.events[0].sync == SyncNote(
            operation="put",
            started=datetime.fromtimestamp(run.started_s, UTC),
            duration_s=5,
            revision=7,
            created=1,
            updated=2,
            deleted=3,
            failures=0,
            handler="on_change",
        )


class TestFailures:
    async def fail(
        self, history: SyncHistory, error: BaseException, failures: int = 1, *, logs: bool = True
    ) -> None:
        history.failed(begin(history), error, now(), failures=failures, log_failure=logs)

    async def test_the_journal_has_the_error(self, history: SyncHistory) -> None:
        await self.fail(history, NatsctlError("no"))
        assert history.journal.failing() == {"shop": "NatsctlError: no"}

    async def test_a_failure_is_an_event_with_its_number(
        self, history: SyncHistory, recorder: MemoryRecorder
    ) -> None:
        history.regarding = lambda _key: (SHOP,)
        await self.fail(history, NatsctlError("no"), 3)
        [event] = recorder.events
        assert (event.type, event.reason) == (EventType.WARNING, REASON_FAILED)
        assert (event.message, event.regarding) == ("NatsctlError: no", (SHOP,))
        assert event.sync is not None
        assert event.sync.failures == 3

    async def test_an_object_of_another_owner_has_its_own_reason(
        self, history: SyncHistory, recorder: MemoryRecorder
    ) -> None:
        await self.fail(history, ExistsError("shop exists"))
        assert recorder.events[0].reason == REASON_EXISTS

    async def test_a_delay_is_neither_an_event_nor_an_error(
        self, history: SyncHistory, recorder: MemoryRecorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.fail(history, RetryAfter(5))
        assert (recorder.events, history.journal.failing(), caplog.messages) == ([], {}, [])
        assert len(history.journal.last_syncs("shop")) == 1

    async def test_a_cancelled_sync_is_kept_and_is_no_event(
        self, history: SyncHistory, recorder: MemoryRecorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        await self.fail(history, asyncio.CancelledError())
        assert (recorder.events, caplog.messages) == ([], [])
        assert len(history.journal.last_syncs("shop")) == 1

    @pytest.mark.parametrize("logs", [True, False])
    async def test_a_failure_is_logged_unless_the_caller_does(
        self, history: SyncHistory, caplog: pytest.LogCaptureFixture, *, logs: bool
    ) -> None:
        await self.fail(history, NatsctlError("no"), logs=logs)
        assert len(caplog.messages) == logs

    async def test_the_failures_in_a_row_are_logged(
        self, history: SyncHistory, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            await self.fail(history, NatsctlError("no"))
        history.succeeded(begin(history), now(), failed=True)
        await self.fail(history, NatsctlError("no"))
        assert ["failures=" in message for message in caplog.messages] == [False, True, False]

    async def test_a_text_names_the_handler(self, history: SyncHistory) -> None:
        run = history.begin("shop", "put", None, handler="on_change")
        history.failed(run, NatsctlError("no"), now(), failures=1)
        assert history.journal.failing() == {"shop": "on_change: NatsctlError: no"}


class Forgetful:
    """A recorder whose events cannot be read again."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def event(self, key: str, type: EventType, reason: str, *_: object, **__: object) -> None:  # noqa: A002 - the field's word
        self.reasons.append(reason)


async def test_syncs_that_are_reported_otherwise_are_recorded_where_they_can_be_read(
    recorder: MemoryRecorder,
) -> None:
    history, forgetful = SyncHistory("apps"), Forgetful()
    history.reported = True
    history.recorders = (forgetful, recorder)
    history.succeeded(begin(history, created=1), now(), failed=False)
    assert (forgetful.reasons, len(recorder.events)) == ([], 1)


async def test_syncs_that_are_not_reported_otherwise_are_recorded_everywhere() -> None:
    history, forgetful = SyncHistory("apps"), Forgetful()
    history.recorders = (forgetful,)
    history.succeeded(begin(history, created=1), now(), failed=False)
    assert forgetful.reasons == [REASON_SYNCED]


async def test_other_events_are_recorded_everywhere(recorder: MemoryRecorder) -> None:
    history, forgetful = SyncHistory("apps"), Forgetful()
    history.reported = True
    history.recorders = (forgetful, recorder)
    history.event("shop", EventType.NORMAL, "Paused", "paused")
    assert (forgetful.reasons, len(recorder.events)) == (["Paused"], 1)


class Past(MemoryRecorder):
    """A recorder that knows four failures in a row, and answers after a while."""

    def __init__(self, answer_s: float = 0.0, error: Exception | None = None) -> None:
        super().__init__()
        self.questions = 0
        self._answer_s = answer_s
        self._error = error

    async def past_failures(self, key: str, handler: str = "") -> int:
        self.questions += 1
        await asyncio.sleep(self._answer_s)
        if self._error is not None:
            raise self._error
        return 4


class TestEarlierFailures:
    """The count of failures continues that of an earlier process."""

    async def recalled(self, past: Past, error: BaseException | None = None) -> int:
        """Return the failures of the key after a failed sync."""
        history, queue = SyncHistory("apps"), WorkQueue[str]()
        history.recorders = (past,)
        queue.offer("shop")
        take_nowait(queue)
        await history.recall("shop", error or NatsctlError("no"), queue, "shop")
        return queue.failures("shop")

    async def test_recorded_failures_count(self) -> None:
        assert await self.recalled(Past()) == 4

    @pytest.mark.parametrize("error", [RetryAfter(5), asyncio.CancelledError()])
    async def test_a_sync_that_has_not_failed_recalls_nothing(self, error: BaseException) -> None:
        assert await self.recalled(Past(), error) == 0

    async def test_events_that_cannot_be_read_now_are_not_read(self) -> None:
        assert await self.recalled(past := Past(), StoreTimeoutError("no answer")) == 0
        assert past.questions == 0

    async def test_events_that_cannot_be_read_count_as_none(self) -> None:
        assert await self.recalled(Past(error=StoreError("denied"))) == 0

    async def test_a_sync_waits_for_the_events_only_shortly(self) -> None:
        assert await self.recalled(Past(answer_s=math.inf)) == 0
        assert now() == PAST_S

    async def test_a_key_that_has_failed_here_recalls_nothing(self) -> None:
        history, queue = SyncHistory("apps"), WorkQueue[str]()
        history.recorders = (past := Past(),)
        queue.retry("shop")
        await history.recall("shop", NatsctlError("no"), queue, "shop")
        assert past.questions == 0

    async def test_each_key_and_handler_is_recalled_once(self) -> None:
        history = SyncHistory("apps")
        history.recorders = (Past(),)
        names = [("shop", ""), ("shop", ""), ("shop", "other"), ("bank", "")]
        counts = [await history.past_failures(key, OSError(), name) for key, name in names]
        assert counts == [4, 0, 4, 4]

    async def test_recorders_whose_events_cannot_be_read_are_not_asked(self) -> None:
        history = SyncHistory("apps")
        history.recorders = (Forgetful(), Past())
        assert await history.past_failures("shop", OSError()) == 4

    async def test_a_key_that_left_is_recalled_again(self) -> None:
        history = SyncHistory("apps")
        history.recorders = (Past(),)
        for key in ("shop", "bank"):
            await history.past_failures(key, OSError())
        await history.keep_only("bank".__eq__)
        counts = [await history.past_failures(key, OSError()) for key in ("shop", "bank")]
        assert counts == [4, 0]


class Kept(Recordings):
    """Keeps recordings in a list; `wanted` has the keys whose successful syncs are kept."""

    def __init__(self, *wanted: str, successes: bool = True) -> None:
        super().__init__()
        self.successes = successes
        self.syncs: list[KeptSync] = []
        self._wanted = wanted

    def wants(self, controller: str, key: str) -> bool:
        return controller == "apps" and key in self._wanted

    def keep(self, recorded: KeptSync) -> None:
        self.syncs.append(recorded)


def call(verb: str, error: RecordedError | None = None) -> StoreStep:
    return StoreStep("pages", verb, "shop", error=error)


FAILURE = RecordedError("natsctl.errors:StoreError", "away")


def raised(error: StoreError) -> StoreError:
    """Return the error after a function has raised it."""
    try:
        raise error
    except StoreError as caught:
        return caught


class TestRecordings:
    def history(self, kept: Kept) -> SyncHistory:
        history = SyncHistory("apps")
        history.recorder = kept
        return history

    @pytest.mark.parametrize(
        ("wanted", "successes", "count"),
        [("shop", True, 1), ("bank", True, 0), ("shop", False, 0)],
    )
    async def test_a_successful_sync_is_kept_if_it_is_wanted(
        self, wanted: str, *, successes: bool, count: int
    ) -> None:
        history = self.history(kept := Kept(wanted, successes=successes))
        history.succeeded(begin(history), now(), failed=False)
        assert len(kept.syncs) == count

    @pytest.mark.parametrize(
        ("error", "wanted", "count"),
        [
            (NatsctlError("no"), "bank", 1),
            (RetryAfter(5), "shop", 1),
            (RetryAfter(5), "bank", 0),
            (asyncio.CancelledError(), "shop", 0),
        ],
        ids=["failure", "wanted delay", "other delay", "cancelled"],
    )
    async def test_a_failed_sync_is_kept_unless_it_was_delayed_or_cancelled(
        self, error: BaseException, wanted: str, count: int
    ) -> None:
        history = self.history(kept := Kept(wanted))
        history.failed(begin(history), error, now(), failures=1)
        assert len(kept.syncs) == count

    async def test_a_sync_that_began_before_recordings_is_not_kept(self) -> None:
        history, kept = SyncHistory("apps"), Kept("shop")
        run = begin(history)
        history.recorder = kept
        history.succeeded(run, now(), failed=False)
        assert kept.syncs == []

    async def test_a_sync_is_kept_once(self) -> None:
        history = self.history(kept := Kept("shop"))
        run = begin(history)
        for _ in range(2):
            history.succeeded(run, now(), failed=False)
        assert len(kept.syncs) == 1

    async def test_the_recording_of_a_failure_has_its_error_and_the_failures_before(self) -> None:
        history = self.history(kept := Kept())
        history.failed(begin(history), raised(StoreError("away")), now(), failures=3)
        [sync] = kept.syncs
        assert (sync.error, sync.failures, len(sync.frames)) == (FAILURE, 2, 1)

    def test_the_successful_writes_on_a_tape_are_counted(self) -> None:
        verbs = ("create", "update", "apply", "patch_status", "delete", "get", "get")
        run = Sync("shop", operation="put", started_s=0.0, begun=0.0)
        failed = [call(verb, FAILURE) for verb in (*verbs, *verbs)]
        run.tape = Tape([*map(call, verbs), *failed, KeysStep("sites", ("shop",))])
        run.count_writes()
        assert (run.created, run.updated, run.deleted) == (1, 3, 1)

    def test_no_writes_are_counted_without_a_tape(self) -> None:
        run = Sync("shop", operation="put", started_s=0.0, begun=0.0)
        run.count_writes()
        assert (run.created, run.updated, run.deleted) == (0, 0, 0)
