"""A log line that repeats is written once a second with a count."""

import asyncio
import json
import logging
import threading
import time
from typing import Any

import pytest

from natsctl.daemon.logs import KINDS_MAX, log_to_stderr
from natsctl.daemon.settings.settings import LogSettings
from natsctl.telemetry.logger import bind_log_context, get_logger

log = get_logger("natsctl.some")

JSON = LogSettings(format="json", level="info")


def log_records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def messages(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    return [(record["message"], record.get("repeated", 1)) for record in log_records(capsys)]


async def test_two_thousand_lines_of_one_event_are_written_as_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for number in range(2000):
        log.warning("sync failed", controller="shops", error=f"no {number}")
    assert [record["error"] for record in log_records(capsys)] == ["no 0"]
    await asyncio.sleep(1.1)
    assert [(record["error"], record["repeated"]) for record in log_records(capsys)] == [
        ("no 1999", 1999)
    ]


async def test_repeated_lines_are_written_once_a_second_with_an_exact_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for _ in range(500):
        log.error("sync failed", controller="shops")
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    lines = messages(capsys)
    assert len(lines) <= 7
    assert sum(count for _, count in lines) == 500


async def test_a_single_line_is_written_immediately(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    log.warning("sync failed", controller="shops")
    assert messages(capsys) == [("sync failed", 1)]
    await asyncio.sleep(5)
    assert messages(capsys) == []
    log.warning("sync failed", controller="shops")
    assert messages(capsys) == [("sync failed", 1)]


async def test_lines_with_another_controller_level_or_message_are_not_folded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    log.warning("sync failed", controller="shops")
    log.warning("sync failed", controller="routes")
    log.error("sync failed", controller="shops")
    log.warning("sync was slow", controller="shops")
    assert len(messages(capsys)) == 4


async def test_events_are_folded_by_controller_kind_and_bucket(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for controller, kind, bucket in (("a", "b", "c"), ("A", "b", "c"), ("a", "B", "c"), (1, 2, 3)):
        for number in range(3):
            log.warning(
                "watch broke", controller=controller, kind=kind, bucket=bucket, error=f"no {number}"
            )
    assert [record["error"] for record in log_records(capsys)] == ["no 0"] * 4
    await asyncio.sleep(1.1)
    assert [(record["error"], record["repeated"]) for record in log_records(capsys)] == [
        ("no 2", 2)
    ] * 4


async def test_lines_about_many_keys_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(JSON)

    async def fail(key: str) -> None:
        bind_log_context(key=key)
        log.error("sync failed", error="denied")

    await asyncio.gather(*(fail(f"k{number}") for number in range(100)))
    await asyncio.sleep(1.1)
    first, last = log_records(capsys)
    assert (first["key"], "repeated" in first) == ("k0", False)
    assert (last["key"], last["repeated"]) == ("k99", 99)


async def test_tracebacks_of_different_error_types_are_not_folded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for text in ("one", "two", None):
        try:
            int(text)  # type: ignore[arg-type]  # the last is an error of another type
        except (TypeError, ValueError):
            log.exception("sync failed", controller="shops")
    await asyncio.sleep(1.1)
    shown = [
        record["exception"].splitlines()[-1].partition(":")[0] for record in log_records(capsys)
    ]
    assert shown == ["ValueError", "TypeError", "ValueError"]


async def test_user_lines_and_lines_below_warning_are_not_folded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for _ in range(10):
        logging.getLogger("shops.handler").warning("sold out")
        log.info("leading", controller="shops")
    assert len(messages(capsys)) == 20


async def test_lines_of_threads_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(JSON)

    def repeat() -> None:
        for _ in range(50):
            log.warning("slow", controller="shops")

    log.warning("slow", controller="shops")
    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await asyncio.sleep(1.1)
    assert messages(capsys) == [("slow", 1), ("slow", 200)]


def test_folded_lines_are_written_when_the_handler_closes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # the lines come within a second
    log_to_stderr(JSON)
    for _ in range(5):
        log.warning("slow", controller="shops")
    logging.getLogger().handlers[-1].close()
    assert messages(capsys) == [("slow", 1), ("slow", 4)]


async def test_the_oldest_of_too_many_folded_lines_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    log.warning("slow", controller="first")
    log.warning("slow", controller="first")
    log.warning("slow", controller="first")
    for number in range(KINDS_MAX):
        log.warning("slow", controller=f"kind {number}")
    lines = messages(capsys)
    assert ("slow", 2) in lines
    assert sum(count for _, count in lines) == KINDS_MAX + 3


async def test_text_lines_show_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings())
    for _ in range(3):
        log.warning("slow", controller="shops")
    await asyncio.sleep(1.1)
    assert capsys.readouterr().err.splitlines()[-1].endswith("slow  controller=shops repeated=2")
