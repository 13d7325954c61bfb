"""One fact is one line, which says what it is about and no secret."""

import json
import logging
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import structlog

from natsctl.daemon.observe.logs import log_to_stderr, secrets_of
from natsctl.daemon.settings.settings import LogFormat, LogSettings
from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.telemetry.logger import bind_log_context, get_logger
from natsctl.telemetry.tracing import sync_span
from tests.support.clients.span_recorder import recording

log = logging.getLogger("natsctl.some")


def lines(
    capsys: pytest.CaptureFixture[str],
    style: LogFormat = "text",
    level: str = "warning",
    secrets: Iterable[str] = (),
) -> list[str]:
    """Return what is written of a line too low, and of a failure."""
    log_to_stderr(LogSettings(format=style, level=level), secrets)
    log.info("not told")
    try:
        int("wrong")
    except ValueError:
        log.exception("sync of %s failed", "shop")
    return capsys.readouterr().err.splitlines()


def facts(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = lines(capsys)
    assert first[13:] == "ERROR   sync of shop failed"
    assert rest[-1].startswith("  ValueError: invalid literal")


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = lines(capsys, "json")
    fact = json.loads(line)
    assert list(fact) == ["time", "level", "logger", "message", "exception"]
    assert fact["level"] == "error"
    assert fact["logger"] == "natsctl.some"
    assert fact["message"] == "sync of shop failed"
    assert "ValueError: invalid literal" in fact["exception"]
    assert fact["time"].endswith("Z")


async def test_a_line_says_what_its_task_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings(format="json"))
    bind_log_context(controller="greetings", key="shop", operation="put", attempt=2)
    log.info("told")
    (fact,) = facts(capsys)
    about = {name: fact[name] for name in ("controller", "key", "operation", "attempt")}
    assert about == {"controller": "greetings", "key": "shop", "operation": "put", "attempt": 2}


@pytest.mark.parametrize("style", ["text", "json"])
async def test_a_line_says_of_which_trace_it_is_while_that_is_recorded(
    style: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(LogSettings(format=style))
    with recording() as recorded, sync_span("shops", dict):
        log.info("told")
    log.info("told later")
    line, later = capsys.readouterr().err.splitlines()
    (span,) = recorded.spans
    trace, span_id = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
    if style == "json":
        fact = json.loads(line)
        assert (fact["trace_id"], fact["span_id"]) == (trace, span_id)
    else:
        assert line.endswith(f"told  trace_id={trace} span_id={span_id}")
    assert "trace_id" not in later


async def test_a_line_has_the_fields_of_its_task_in_text_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr(LogSettings())
    bind_log_context(controller="greetings", key="shop", attempt=1)
    log.info("the workshop is closed")
    assert capsys.readouterr().err[21:] == (
        "the workshop is closed  controller=greetings key=shop attempt=1\n"
    )


async def test_what_is_not_plain_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings())
    log.info("told", extra={"a": "b c", "d": "e=f", "g": 7})
    assert capsys.readouterr().err[21:] == "told  a='b c' d='e=f' g=7\n"


async def test_an_event_has_the_fields_of_its_task_and_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = get_logger("natsctl.some")
    bind_log_context(controller="greetings", key="shop")
    log_to_stderr(LogSettings())
    log.info("lost leadership", epoch=41, key="market")
    assert capsys.readouterr().err[21:] == (
        "lost leadership  controller=greetings key=market epoch=41\n"
    )
    log_to_stderr(LogSettings(format="json"))
    log.info("lost leadership", epoch=41, error=ValueError("no luck"))
    (fact,) = facts(capsys)
    fact.pop("time")
    assert fact == {
        "level": "info",
        "logger": "natsctl.some",
        "message": "lost leadership",
        "controller": "greetings",
        "key": "shop",
        "epoch": 41,
        "error": "no luck",
    }


def test_a_field_of_several_lines_is_below_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings())
    get_logger("natsctl.some").error("handler did not end", stack="one\ntwo", timeout_s=5)
    assert capsys.readouterr().err[21:] == (
        "handler did not end  timeout_s=5\n  stack:\n  one\n  two\n"
    )


def test_loggers_of_structlog_write_the_same_lines(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings(format="json"), ["hushhush"])
    structlog.get_logger("mine").warning("from %s", "hushhush", order=7)
    structlog.get_logger("mine").debug("not told")
    (fact,) = facts(capsys)
    assert {name: fact[name] for name in ("level", "logger", "message", "order")} == {
        "level": "warning",
        "logger": "mine",
        "message": "from ***",
        "order": 7,
    }


def test_a_logger_may_have_a_level_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings(level="ERROR,natsctl.jetstream=debug"))
    log.warning("not told")
    logging.getLogger("natsctl.jetstream.connection.link").debug("told")
    assert capsys.readouterr().err[13:] == "DEBUG   told\n"


def test_the_outside_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings())
    log.error("answered \x1b[2J\x9b2J\r")
    assert capsys.readouterr().err[21:] == "answered \\x1b[2J\\x9b2J\\x0d\n"


def test_the_outside_cannot_write_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings())
    forged = "12:00:00.000 INFO    all is well"
    error = ValueError(f"bad\n{forged}")
    log.error("answered %s", error, exc_info=error)
    first, *others = capsys.readouterr().err.splitlines()
    assert first[21:] == "answered bad"
    assert [line for line in others if line.endswith(forged)] == [f"  {forged}"] * 2
    assert all(line.startswith("  ") for line in others)


def test_there_is_colour_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b" not in lines(capsys)[0]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert "\x1b[31mERROR  \x1b[0m sync" in lines(capsys)[0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in lines(capsys)[0]


@pytest.mark.parametrize("style", ["text", "json"])
async def test_no_secret_is_in_messages_facts_and_tracebacks(
    style: LogFormat, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to_stderr(LogSettings(format=style), ["hush of 7"])
    bind_log_context(key="nats://ann:hush1@hub")
    error = ConnectionError("refused: hush of 7, nats://ann:hush2@hub:4222")
    log.error("with %s: %r", "hush of 7", error, exc_info=error, extra={"mine": "hush of 7"})
    told = capsys.readouterr().err
    assert "hush" not in told
    assert told.count("***") >= 6
    assert "hub:4222" in told


def complain(of: str) -> None:
    raise ValueError(of)


def test_a_line_is_cut_however_much_a_stranger_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(LogSettings(format="json"))
    try:
        complain("x" * 1_000_000)
    except ValueError:
        log.exception("sync of %s failed", "k" * 1_000_000, extra={"fact": "f" * 1_000_000})
    (line,) = capsys.readouterr().err.splitlines()
    fact = json.loads(line)
    assert [len(fact[name]) < 33_000 for name in ("message", "fact", "exception")] == [True] * 3
    assert fact["message"].endswith(" more characters)")


def test_the_secrets_of_options_are_those_in_urls_too() -> None:
    options = NatsOptions(
        servers=("nats://ann:in%40url@hub,nats://tok@b",), user="bob", password="p"
    )
    found = secrets_of(options, KubeOptions(server="https://a", token="t"))
    assert sorted(found) == ["in@url", "p", "t", "tok"]
    assert list(secrets_of(NatsOptions())) == []


def test_a_url_that_is_none_is_refused_without_its_secret() -> None:
    with pytest.raises(UsageError) as caught:
        list(secrets_of(NatsOptions(servers=("http://ann:hush@hub",))))
    assert "hush" not in str(caught.value)
