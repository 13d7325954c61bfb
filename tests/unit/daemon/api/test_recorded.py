"""Daemons answer requests to record keys, and send recordings in parts."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from natsctl import Controller, ControllerRuntime, Object, kv, primary
from natsctl.core.recording.document import decode_recording
from natsctl.core.recording.recordings import Recordings, recording
from natsctl.daemon.messages import DaemonProcess, RecordingPart
from natsctl.daemon.service import KEYS_MAX, record_keys, recording_part
from natsctl.errors import NatsctlError, NotFoundError, UsageError
from natsctl.testing import running

PROCESS = DaemonProcess(id="1", host="h", pid=7, version="0.1.0", started="2026-01-01T00:00:00Z")
LIMIT = 10_000  # bytes of an answer


class ShopSpec(msgspec.Struct, frozen=True):
    text: str


class Shop(Object, frozen=True):
    spec: ShopSpec


class Shops(Controller):
    shops = primary(kv(Shop, bucket="shops"))

    async def sync_handler(self, key: str) -> float | None:
        raise ValueError(f"cannot sync {key}")


@pytest.fixture
async def runtime() -> AsyncIterator[ControllerRuntime]:
    """Run a controller whose syncs of a large object have failed."""
    recordings, controller = Recordings(), Shops()
    with recording(recordings):
        async with running(controller) as harness:
            await controller.shops.put("a", Shop(spec=ShopSpec('"quoted" ' * 10_000)))
            await harness.run_until(lambda: recordings.of("shops", "a"))
            yield harness.runtime


def part(runtime: ControllerRuntime, request: str) -> RecordingPart:
    answer = recording_part(runtime, PROCESS, request.encode(), masked=True, limit=LIMIT)
    assert len(answer) <= LIMIT
    return msgspec.json.decode(answer, type=RecordingPart)


async def test_a_long_recording_comes_in_parts_that_fit(runtime: ControllerRuntime) -> None:
    first = part(runtime, "a")
    texts = [first.text, *(part(runtime, f"a {number}").text for number in range(1, first.parts))]
    assert first.parts > 20
    recorded = decode_recording("".join(texts).encode())
    assert len(bytes(recorded.states[0].value)) > 100_000


async def test_a_part_after_the_last_one_is_empty(runtime: ControllerRuntime) -> None:
    first = part(runtime, "a")
    assert part(runtime, f"a {first.parts}").text == ""


@pytest.mark.parametrize("request_", [b"", b"a b", b"\xff"])
async def test_another_request_is_refused(runtime: ControllerRuntime, request_: bytes) -> None:
    with pytest.raises(NatsctlError):
        recording_part(runtime, PROCESS, request_, masked=True, limit=LIMIT)


async def test_a_key_without_a_recording_is_not_found(runtime: ControllerRuntime) -> None:
    with pytest.raises(NotFoundError, match="or newer recordings have replaced it"):
        part(runtime, "b")


async def test_keys_are_recorded_until_they_are_not(runtime: ControllerRuntime) -> None:
    assert record_keys(runtime, PROCESS, ["a", "b"]).keys == ["a", "b"]
    assert record_keys(runtime, PROCESS, ["-", "a"]).keys == ["b"]
    assert record_keys(runtime, PROCESS, ["-"]).keys == []


async def test_too_many_keys_are_refused(runtime: ControllerRuntime) -> None:
    record_keys(runtime, PROCESS, [str(number) for number in range(KEYS_MAX)])
    with pytest.raises(UsageError, match=f"record at most {KEYS_MAX} keys"):
        record_keys(runtime, PROCESS, ["one-more"])


async def test_a_process_without_recordings_is_an_error() -> None:
    async with running(Shops()) as harness:
        with pytest.raises(UsageError, match="shops keeps no recordings"):
            record_keys(harness.runtime, PROCESS, ["a"])
