"""Lines of other processes are passed on whole, with their process."""

import asyncio
import json

import pytest

from natsctl.daemon.observe.log_relay import LINE_MAX, LogRelay, whole_lines
from natsctl.daemon.settings.settings import LogSettings

EVENT = {
    "time": "2026-11-22T10:00:00.123Z",
    "level": "info",
    "logger": "natsctl.core",
    "message": "sharing keys",
    "process": 2,
    "members": 3,
}
LINE = json.dumps(EVENT).encode()
JSON, TEXT = LogSettings(format="json"), LogSettings(format="text")


async def lines_of(*chunks: bytes) -> list[bytes]:
    reader = asyncio.StreamReader()
    received: list[bytes] = []
    task = asyncio.create_task(whole_lines(reader, received.append))
    for chunk in chunks:
        reader.feed_data(chunk)
        await asyncio.sleep(0)
    reader.feed_eof()
    await task
    return received


async def test_a_line_in_several_chunks_is_received_once() -> None:
    assert await lines_of(b"on", b"e\ntw", b"o\n") == [b"one", b"two"]


async def test_the_rest_without_a_line_break_is_received_at_the_end() -> None:
    assert await lines_of(b"one\ntwo") == [b"one", b"two"]


async def test_a_line_that_is_too_long_is_cut() -> None:
    received = await lines_of(b"x" * (LINE_MAX + 1), b"y\n")
    assert b"".join(received) == b"x" * (LINE_MAX + 1) + b"y"
    assert len(received) == 2


def test_a_json_line_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    LogRelay(JSON).log(2, LINE)
    assert json.loads(capsys.readouterr().err) == EVENT


def test_a_text_line_has_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    LogRelay(TEXT).log(2, LINE)
    assert capsys.readouterr().err.endswith("INFO    sharing keys  process=2 members=3\n")


@pytest.mark.parametrize("line", [b"Segmentation fault", b'{"spec": {}}', b"[1]", b'{"time": 1}'])
def test_another_line_becomes_an_event(capsys: pytest.CaptureFixture[str], line: bytes) -> None:
    LogRelay(JSON).log(2, line)
    event = json.loads(capsys.readouterr().err)
    assert (event["message"], event["process"], event["line"]) == ("output", 2, line.decode())


def test_standard_output_is_passed_on_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    LogRelay(TEXT).output(b"printed")
    assert capfd.readouterr().out == "printed\n"
