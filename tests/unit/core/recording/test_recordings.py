"""Recordings are kept in memory within a bound."""

from datetime import UTC, datetime

import msgspec
import pytest
from msgspec import Raw

from natsctl import Controller, Object, kv, primary
from natsctl.core.environment import within
from natsctl.core.record.recordings import SHARE, SYNCS_MAX, KeptSync, Recordings, frames_of
from natsctl.core.sync import Calls
from natsctl.core.tape import OutsideStep, RecordedError, StoreStep
from natsctl.model.store import Stored
from natsctl.testing import running

VALUE = 10_000  # bytes of a recorded object


def sync(
    key: str = "a", *, value: int = VALUE, controller: str = "shops", second: int = 0
) -> KeptSync:
    """Return a failed sync that has read one object, and written one."""
    stored = Stored(key, 1, b"x" * value)
    return KeptSync(
        controller=controller,
        key=key,
        operation="put",
        started=datetime(2026, 1, 1, second=second, tzinfo=UTC),
        duration_s=0.1,
        stored=stored,
        error=RecordedError("ValueError", "broken"),
        steps=(StoreStep("kv/pages", "create", key, Raw(b"y" * value), stored),),
    )


def seconds(recordings: Recordings) -> list[int]:
    return [kept.started.second for kept in recordings.of("shops", "a")]


def test_the_last_syncs_of_a_recorded_key_are_kept_and_one_of_each_other() -> None:
    recordings = Recordings()
    for second in range(3):
        recordings.keep(sync(second=second))
    assert seconds(recordings) == [2]
    recordings.select("shops", ["a", "b"])
    for second in range(SYNCS_MAX + 3):
        recordings.keep(sync(second=second))
    assert seconds(recordings) == list(range(3, SYNCS_MAX + 3))
    recordings.deselect("shops", ["a"])
    recordings.keep(sync(second=30))
    assert seconds(recordings) == [30]
    assert recordings.selected("shops") == ["b"]


def test_the_oldest_recordings_are_dropped_above_the_bound() -> None:
    recordings = Recordings(10 * VALUE)
    for number in range(20):
        recordings.keep(sync(f"key-{number:02}"))
        assert recordings.bytes <= recordings.bytes_max
    keys = recordings.keys("shops")
    assert keys == [f"key-{number:02}" for number in range(20 - len(keys), 20)]
    assert recordings.bytes == recordings.bytes_of("shops")


def test_the_calls_of_an_external_system_count() -> None:
    call = OutsideStep("external observe", "dict", Raw(b"z" * VALUE))
    small = sync(value=0)
    assert msgspec.structs.replace(small, steps=(call,)).size >= small.size + VALUE - 1_000


def test_a_sync_that_read_too_much_is_kept_without_its_reads() -> None:
    recordings = Recordings(SHARE * VALUE)
    recordings.keep(sync())
    (kept,) = recordings.of("shops", "a")
    assert (kept.complete, kept.steps, kept.error) == (
        False,
        (),
        RecordedError("ValueError", "broken"),
    )


def test_the_memory_of_each_controller_is_counted() -> None:
    recordings = Recordings()
    recordings.keep(sync(controller="shops"))
    recordings.keep(sync(controller="sites", value=2 * VALUE))
    assert recordings.bytes_of("sites") > 1.5 * recordings.bytes_of("shops")
    assert recordings.bytes == recordings.bytes_of("shops") + recordings.bytes_of("sites")


class Shop(Object, frozen=True):
    pass


class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops"))

    async def sync_handler(self, key: str) -> float | None:
        raise ValueError(f"cannot sync {key}")


async def test_a_kept_sync_has_its_duration_and_the_failures_before_it() -> None:
    recordings, controller = Recordings(), Shops()
    with within(recordings=recordings):
        async with running(controller) as harness:
            await controller.shops.put("a", Shop())
            await harness.run_for(3600)
            measured = harness.runtime.measures().recordings_bytes
            assert measured == recordings.bytes_of("shops") > 0
    (kept,) = recordings.of("shops", "a")
    assert kept.failures > 5
    assert (kept.operation, kept.duration_s) == ("retry", 0)


async def test_a_traceback_begins_with_the_frames_of_the_user() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def handler(_key: str) -> None:
        fail()

    with pytest.raises(ValueError, match="no") as caught:
        await Calls("shops", "sync_handler").call("pier", handler)
    raised = caught.value.__traceback__
    assert raised is not None
    frames = frames_of(raised.tb_next)  # without the frame of this test
    assert [code.co_name for code, _ in frames] == ["handler", "fail"]
