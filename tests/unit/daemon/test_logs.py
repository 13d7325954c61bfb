"""Logs of a daemon: formats, hidden secrets, and repeated lines."""

import asyncio
import json
import logging
import sys
import time
from typing import Any

import pytest

from natsctl import KubeOptions, NatsOptions
from natsctl.daemon.logs import KINDS_MAX, log_to_stderr, secrets_of
from natsctl.daemon.settings.settings import LogFormat, LogSettings
from natsctl.telemetry.logger import bind_log_context, get_logger

# ---- each log record is one line, as text or JSON, with its fields and without secrets

log = logging.getLogger("natsctl.some")


def lines(capsys: pytest.CaptureFixture[str], style: LogFormat = "text") -> list[str]:
    """Log a line below the level and a failure, and return the written lines."""
    log_to_stderr(LogSettings(format=style, level="warning"))
    log.info("not written")
    try:
        int("wrong")
    except ValueError:
        log.exception("sync of %s failed", "shop")
    return capsys.readouterr().err.splitlines()


def log_records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_text_line_has_the_time_the_level_and_an_indented_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    first, *traceback = lines(capsys)
    assert first[13:] == "ERROR   sync of shop failed"
    assert traceback[-1].startswith("  ValueError: invalid literal")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert "\x1b[31mERROR  \x1b[0m sync" in lines(capsys)[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in lines(capsys)[0]


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = lines(capsys, "json")
    record = json.loads(line)
    assert list(record) == ["time", "level", "logger", "message", "exception"]
    assert record["level"] == "error"
    assert record["logger"] == "natsctl.some"
    assert record["message"] == "sync of shop failed"
    assert "ValueError: invalid literal" in record["exception"]
    assert record["time"].endswith("Z")


async def test_a_text_line_has_its_fields_and_those_of_its_task(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(LogSettings())
    log.info("written", extra={"a": "b c", "d": "e=f", "g": 7})
    assert capsys.readouterr().err[21:] == "written  a='b c' d='e=f' g=7\n"
    bind_log_context(controller="greetings", key="shop", attempt=1)
    log.info("the workshop is closed")
    assert capsys.readouterr().err[21:] == (
        "the workshop is closed  controller=greetings key=shop attempt=1\n"
    )


def test_the_level_setting_can_name_a_logger(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings(level="ERROR,natsctl.jetstream=debug"))
    log.warning("not written")
    logging.getLogger("natsctl.jetstream.connection").debug("written")
    assert capsys.readouterr().err[13:] == "DEBUG   written\n"


def test_a_message_cannot_forge_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings())
    forged = "12:00:00.000 INFO    all is well"
    error = ValueError(f"bad\x1b[2J\x9b2J\r\n{forged}")
    log.error("received %s", error, exc_info=error)
    first, *later_lines = capsys.readouterr().err.splitlines()
    assert first[21:] == "received bad\\x1b[2J\\x9b2J\\x0d"
    assert [line for line in later_lines if line.endswith(forged)] == [f"  {forged}"] * 2
    assert all(line.startswith("  ") for line in later_lines)


@pytest.mark.parametrize("style", ["text", "json"])
async def test_messages_fields_and_tracebacks_have_no_secrets(
    style: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(LogSettings(format=style), ["hush of 7"])
    bind_log_context(key="nats://ann:hush1@hub")
    error = ConnectionError("refused: hush of 7, nats://ann:hush2@hub:4222")
    log.error("with %s: %r", "hush of 7", error, exc_info=error, extra={"mine": "hush of 7"})
    output = capsys.readouterr().err
    assert "hush" not in output
    assert output.count("***") >= 6
    assert "hub:4222" in output


def fail(message: str) -> None:
    raise ValueError(message)


def test_a_long_message_field_and_traceback_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings(format="json"))
    try:
        fail("x" * 1_000_000)
    except ValueError:
        log.exception("sync of %s failed", "k" * 1_000_000, extra={"fact": "f" * 1_000_000})
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert [len(record[name]) < 33_000 for name in ("message", "fact", "exception")] == [True] * 3
    assert record["message"].endswith(" more characters)")


def test_the_secrets_of_options_include_those_in_urls() -> None:
    options = NatsOptions(
        servers=("nats://ann:in%40url@hub,nats://tok@b",), user="bob", password="p"
    )
    secrets_found = secrets_of(options, KubeOptions(server="https://a", token="t"))
    assert sorted(secrets_found) == ["in@url", "p", "t", "tok"]
    assert list(secrets_of(NatsOptions())) == []


# ---- a log line that repeats is written once a second with a count

logger = get_logger("natsctl.some")

JSON = LogSettings(format="json", level="info")


def messages(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, int]]:
    return [(record["message"], record.get("repeated", 1)) for record in log_records(capsys)]


async def test_repeated_lines_are_written_once_a_second_with_an_exact_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for _ in range(500):
        logger.error("sync failed", controller="shops")
        await asyncio.sleep(0.01)
    await asyncio.sleep(2)
    lines = messages(capsys)
    assert len(lines) <= 7
    assert sum(count for _, count in lines) == 500


async def test_lines_about_many_keys_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(JSON)

    async def fail(key: str) -> None:
        bind_log_context(key=key)
        logger.error("sync failed", error="denied")

    await asyncio.gather(*(fail(f"k{number}") for number in range(100)))
    await asyncio.sleep(1.1)
    first, last = log_records(capsys)
    assert (first["key"], "repeated" in first) == ("k0", False)
    assert (last["key"], last["repeated"]) == ("k99", 99)


def test_folded_lines_are_written_when_the_handler_closes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)  # the lines come within a second
    log_to_stderr(JSON)
    for _ in range(5):
        logger.warning("slow", controller="shops")
    logging.getLogger().handlers[-1].close()
    assert messages(capsys) == [("slow", 1), ("slow", 4)]


async def test_the_oldest_of_too_many_folded_lines_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(JSON)
    for _ in range(3):
        logger.warning("slow", controller="first")
    for number in range(KINDS_MAX):
        logger.warning("slow", controller=f"kind {number}")
    lines = messages(capsys)
    assert ("slow", 2) in lines
    assert sum(count for _, count in lines) == KINDS_MAX + 3
