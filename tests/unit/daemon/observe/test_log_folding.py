"""A line that repeats is written once a second, with its count."""

import asyncio
import json
import logging
import threading
from typing import Any

import pytest

from natsctl.daemon.observe.log_folding import KINDS_MAX
from natsctl.daemon.observe.logs import log_to_stderr
from natsctl.daemon.settings.settings import LogSettings
from natsctl.telemetry.logger import bind_log_context, get_logger

log = get_logger("natsctl.some")

JSON = LogSettings(format="json", level="info")


def facts(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def told(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    return [(fact["message"], fact.get("repeated", 1)) for fact in facts(capsys)]


async def test_two_thousand_lines_at_once_are_two(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(JSON)
    for number in range(2000):
        log.warning("sync failed", controller="shops", error=f"no {number}")
    assert [fact["error"] for fact in facts(capsys)] == ["no 0"]
    await asyncio.sleep(1.1)
    assert [(fact["error"], fact["repeated"]) for fact in facts(capsys)] == [("no 1999", 1999)]


async def test_lines_that_go_on_are_written_once_a_second_and_all_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for _ in range(500):
        log.error("sync failed", controller="shops")
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    lines = told(capsys)
    assert len(lines) <= 7
    assert sum(count for _, count in lines) == 500


async def test_a_line_that_comes_once_is_written_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    log.warning("sync failed", controller="shops")
    assert told(capsys) == [("sync failed", 1)]
    await asyncio.sleep(5)
    assert told(capsys) == []
    log.warning("sync failed", controller="shops")
    assert told(capsys) == [("sync failed", 1)]


async def test_other_kinds_levels_and_formats_are_other_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    log.warning("sync failed", controller="shops")
    log.warning("sync failed", controller="routes")
    log.error("sync failed", controller="shops")
    log.warning("sync was slow", controller="shops")
    assert len(told(capsys)) == 4


async def test_events_are_folded_by_controller_kind_and_bucket(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for controller, kind, bucket in (("a", "b", "c"), ("A", "b", "c"), ("a", "B", "c"), (1, 2, 3)):
        for number in range(3):
            log.warning(
                "watch broke", controller=controller, kind=kind, bucket=bucket, error=f"no {number}"
            )
    assert [fact["error"] for fact in facts(capsys)] == ["no 0"] * 4
    await asyncio.sleep(1.1)
    assert [(fact["error"], fact["repeated"]) for fact in facts(capsys)] == [("no 2", 2)] * 4


async def test_lines_about_many_keys_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(JSON)

    async def fail(key: str) -> None:
        bind_log_context(key=key)
        log.error("sync failed", error="denied")

    await asyncio.gather(*(fail(f"k{number}") for number in range(100)))
    await asyncio.sleep(1.1)
    first, last = facts(capsys)
    assert (first["key"], "repeated" in first) == ("k0", False)
    assert (last["key"], last["repeated"]) == ("k99", 99)


async def test_the_traceback_of_another_error_is_never_folded_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for text in ("one", "two", None):
        try:
            int(text)  # type: ignore[arg-type]  # the last is an error of another type
        except (TypeError, ValueError):
            log.exception("sync failed", controller="shops")
    await asyncio.sleep(1.1)
    shown = [fact["exception"].splitlines()[-1].partition(":")[0] for fact in facts(capsys)]
    assert shown == ["ValueError", "TypeError", "ValueError"]


async def test_lines_of_users_and_below_warnings_are_all_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for _ in range(10):
        logging.getLogger("shops.handler").warning("sold out")
        log.info("leading", controller="shops")
    assert len(told(capsys)) == 20


async def test_lines_of_threads_are_folded_too(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert told(capsys) == [("slow", 1), ("slow", 200)]


def test_what_is_held_back_is_written_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(JSON)
    for _ in range(5):
        log.warning("slow", controller="shops")
    logging.getLogger().handlers[-1].close()
    assert told(capsys) == [("slow", 1), ("slow", 4)]


async def test_of_endless_kinds_the_oldest_is_forgotten_and_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    log.warning("slow", controller="first")
    log.warning("slow", controller="first")
    log.warning("slow", controller="first")
    for number in range(KINDS_MAX):
        log.warning("slow", controller=f"kind {number}")
    lines = told(capsys)
    assert ("slow", 2) in lines
    assert sum(count for _, count in lines) == KINDS_MAX + 3


async def test_text_lines_show_the_count(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings())
    for _ in range(3):
        log.warning("slow", controller="shops")
    await asyncio.sleep(1.1)
    assert capsys.readouterr().err.splitlines()[-1].endswith("slow  controller=shops repeated=2")
