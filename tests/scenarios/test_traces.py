"""Every sync is a trace, on each surface, and contains the spans of the handler."""

import asyncio
import logging
from collections.abc import Iterator

import pytest
from opentelemetry.trace import StatusCode, get_current_span

from natsctl import Object, Primary, RetryAfter, kv
from natsctl.managed import ManagedController, ManagedReconciler
from natsctl.telemetry.logger import log_context
from natsctl.telemetry.tracing import trace_ids
from natsctl.testing import MemoryStores, running
from natsctl.watchers import InformerController, SimpleWatcher
from tests.support.clients.span_recorder import Recording, recording
from tests.support.controllers.app_controller import APPS, App, Apps, AppSpec
from tests.support.controllers.disk_reconciler import ran
from tests.support.controllers.recording_watcher import SITES, site
from tests.support.controllers.recording_watcher import running as running_watchers
from tests.support.controllers.sharing_group import SharingMember
from tests.support.stores.documents import put

log = logging.getLogger("mine")


@pytest.fixture
def recorded() -> Iterator[Recording]:
    with recording() as recorded_spans:
        yield recorded_spans


class Traced(Apps):
    """Records a span in every sync; raises `fail` once."""

    def __init__(self, recorded: Recording) -> None:
        super().__init__()
        self.fail: Exception | None = None
        self._tracer = recorded.provider.get_tracer("mine")

    async def sync_handler(self, key: str) -> float | None:
        with self._tracer.start_as_current_span("mine"):
            await asyncio.sleep(1)
        if self.fail is not None:
            failure, self.fail = self.fail, None
            raise failure
        return await super().sync_handler(key)


async def test_the_span_of_a_sync_has_its_key_its_own_failure_and_the_spans_of_the_handler(
    recorded: Recording,
) -> None:
    controller = Traced(recorded)
    async with running(controller) as harness:
        for failure in (ValueError("not today"), RetryAfter(5)):
            controller.fail = failure
            await controller.apps.put("shop", App(spec=AppSpec(str(failure))))
            await harness.run_until_idle()
    spans = recorded.named("sync traced")
    failed, succeeded, delayed, *_ = spans
    attributes = {
        "natsctl.controller": "traced",
        "natsctl.key": "shop",
        "natsctl.attempt": 1,
        "natsctl.operation": "put",
    }
    assert failed.attributes == {**attributes, "error.type": "ValueError"}
    assert delayed.attributes == attributes
    assert succeeded.attributes is not None
    assert succeeded.attributes["natsctl.attempt"] == 2
    assert failed.status.description == "ValueError: not today"
    for span in (succeeded, delayed):
        assert span.status.status_code is StatusCode.UNSET  # a delay is no error
    assert failed.context.trace_id != succeeded.context.trace_id
    assert [span.parent for span in spans] == [None] * len(spans)
    assert [span.name for span in recorded.below(failed)] == ["mine"]


async def test_a_timed_out_sync_ends_the_spans_of_the_handler(recorded: Recording) -> None:
    class Slow(Traced):
        sync_timeout_s = 0.5

    controller = Slow(recorded)
    async with running(controller) as harness:
        await controller.apps.put("shop", App(spec=AppSpec()))
        await asyncio.sleep(0.6)
        await controller.apps.delete("shop")
        harness.runtime.stop()
    first, *_ = recorded.named("sync slow")
    assert str(first.status.description).startswith("SyncTimeoutError")
    assert [span.name for span in recorded.below(first)] == ["mine"]


async def test_a_leader_records_the_same_spans(recorded: Recording) -> None:
    stores = MemoryStores()
    leader = SharingMember(stores, Traced(recorded), count=1)
    await leader.operator.synced.wait()
    await stores.store(APPS).create("shop", b'{"spec": {}}')
    await asyncio.sleep(5)
    await leader.stop()
    first, *_ = recorded.named("sync traced")
    assert [span.name for span in recorded.below(first)] == ["mine"]


async def test_a_log_line_of_a_sync_belongs_to_its_trace(
    recorded: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    ids: list[dict[str, str]] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "failed" in record.getMessage():
                ids.append({**trace_ids(), "key": str(log_context()["key"])})

    noting = Noting()
    logging.getLogger("natsctl.core.history").addHandler(noting)
    try:
        controller = Traced(recorded)
        async with running(controller) as harness:
            controller.fail = ValueError("not today")
            await controller.apps.put("shop", App(spec=AppSpec()))
            await harness.run_until_idle()
    finally:
        logging.getLogger("natsctl.core.history").removeHandler(noting)
    first, *_ = recorded.named("sync traced")
    trace, span = f"{first.context.trace_id:032x}", f"{first.context.span_id:016x}"
    assert ids == [{"trace_id": trace, "span_id": span, "key": "shop"}]


async def test_establishing_a_watch_is_a_trace_and_its_restarts_are(recorded: Recording) -> None:
    controller = Apps()
    stores = MemoryStores()
    async with running(controller, stores=stores) as harness:
        await harness.run_until_idle()
        assert {span.name for span in recorded.spans} == {
            *("watch App.apps", "watch Part.parts"),
            "watch bytes.natsctl",  # the records of pauses
        }
        stores.store(APPS).break_watches()
        await asyncio.sleep(60)
    restarted = [dict(span.attributes or {}) for span in recorded.named("watch App.apps")]
    assert [facts["natsctl.watch.restarts"] for facts in restarted] == [0, 1]
    assert all(span.parent is None for span in recorded.spans)


async def test_the_call_of_a_watcher_is_a_trace(recorded: Recording) -> None:
    failures = [ValueError("not today")]

    async def add(_: object) -> None:
        assert get_current_span().is_recording()
        if failures:
            raise failures.pop()

    controller = InformerController(name="sites")
    controller.add_informer(SITES)
    controller.add_watcher(SimpleWatcher(add_func=add), SITES)
    stores = MemoryStores()
    async with running_watchers(controller, stores):
        await put(stores.store(SITES), "a", site())
        await asyncio.sleep(60)
    spans = [span for span in recorded.spans if span.name.startswith("sync ")]
    assert [span.status.description for span in spans] == ["ValueError: not today", None]
    assert [(span.attributes or {})["natsctl.operation"] for span in spans] == ["create", "create"]


class Database(Object, frozen=True):
    spec: AppSpec = AppSpec()


class Databases(ManagedController[Database]):
    kind = kv(Database, bucket="databases")

    def reconciler(self, managed: Primary[Database]) -> ManagedReconciler[Database]:
        async def connect(_: object) -> None:
            raise ValueError("no way to nats://ann:hush@db")

        return ManagedReconciler(managed, connecter=connect)  # type: ignore[arg-type]


async def test_a_reconciliation_is_a_trace_and_its_status_holds_no_secret(
    recorded: Recording,
) -> None:
    stores = MemoryStores()
    async with ran(Databases(nats=stores)):
        await stores.store(Databases.kind).create("db", b'{"spec": {}}')
        await asyncio.sleep(1)
    stored = await stores.store(Databases.kind).get("db")
    first, *_ = recorded.named("sync databases")
    assert first.status.description == "ValueError: no way to nats://***@db"
    assert b"nats://***@db" in stored.value
    assert b"hush" not in stored.value
