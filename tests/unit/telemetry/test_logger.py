"""A log line is an event with its own fields and those of its task."""

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import pytest

from natsctl import Retry
from natsctl.core.informer import Informer
from natsctl.core.loop import SyncLoop
from natsctl.errors import StoreError
from natsctl.model.store import WatchEvent
from natsctl.telemetry.logger import (
    HidingFormatter,
    LogEvent,
    bind_log_context,
    get_logger,
    log_context,
    unbind_sync,
)
from natsctl.testing import MemoryStore
from tests.support.stores.sample_objects import THINGS, informed


async def test_a_child_task_inherits_the_log_context_and_does_not_change_that_of_its_parent() -> (
    None
):
    async def child() -> Mapping[str, object]:
        inherited = log_context()
        bind_log_context(key="b")
        return inherited

    bind_log_context(controller="c", key="a")
    assert await asyncio.create_task(child()) == {"controller": "c", "key": "a"}
    assert log_context() == {"controller": "c", "key": "a"}


async def test_unbind_sync_keeps_only_the_controller_in_the_log_context() -> None:
    bind_log_context(controller="c", key="a", attempt=1)
    unbind_sync()
    assert log_context() == {"controller": "c"}


async def test_the_log_context_of_a_sync_has_the_key_and_the_attempt() -> None:
    contexts: list[Mapping[str, object]] = []

    async def handler(key: str) -> None:
        contexts.append(log_context())
        if len(contexts) > 2:
            loop.queue.shut_down(drain=False)
        elif key == "a":
            raise ValueError

    async def ready() -> None:
        """Be ready."""

    loop = SyncLoop(handler, retry=lambda error, failures: Retry(1))
    loop.queue.offer("a")
    loop.queue.offer("b")
    await loop.run(ready)
    assert contexts == [
        {"key": "a", "attempt": 1},
        {"key": "b", "attempt": 1},
        {"key": "a", "attempt": 2},
    ]


async def test_a_watch_opened_by_a_sync_has_no_key_in_its_log_context() -> None:
    contexts: list[Mapping[str, object]] = []

    class RecordingStore(MemoryStore):
        @asynccontextmanager
        async def watch(
            self, shown: Collection[str] | None = None
        ) -> AsyncIterator[AsyncIterator[WatchEvent]]:
            contexts.append(log_context())
            async with super().watch(shown) as events:
                yield events

    bind_log_context(controller="c", key="a")
    async with informed(Informer(RecordingStore(THINGS), THINGS)):
        assert contexts == [{"controller": "c"}]


def test_a_record_has_the_event_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("some")
    log.warning("lost leadership", controller="greetings", epoch=41, key=None, reason="100 % late")
    (record,) = caplog.records
    assert (record.name, record.funcName) == (
        "some",
        "test_a_record_has_the_event_and_its_fields",
    )
    assert record.msg == LogEvent(
        "lost leadership", {"controller": "greetings", "epoch": 41, "reason": "100 % late"}
    )
    assert caplog.messages == [
        "lost leadership controller=greetings epoch=41 reason='100 % late'",
    ]


def test_an_error_is_a_field_and_a_traceback_is_optional(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("some")
    log.error("sync failed", error=StoreError(), exc_info=ValueError("no luck"))
    assert caplog.messages == ["sync failed error=StoreError"]
    assert "ValueError: no luck" in caplog.text


def test_a_logger_formats_nothing_below_its_level() -> None:
    class Unread:
        def __str__(self) -> str:
            raise AssertionError("the field was formatted")

    get_logger("some").debug("cache synced", kind=Unread())


def test_the_formatter_hides_secrets_in_messages_and_tracebacks() -> None:
    formatter = HidingFormatter("natsctl: %(message)s")
    error = OSError("nats://u:hush@b")
    record = logging.makeLogRecord(
        {"msg": "at %s", "args": ("nats://u:hush@a",), "exc_info": (OSError, error, None)}
    )
    assert formatter.format(record) == "natsctl: at nats://***@a\n  OSError: nats://***@b"
