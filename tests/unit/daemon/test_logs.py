"""One fact is one line."""

import json
import logging

import pytest

from natsctl.daemon.logs import LogFormat, log_to_stderr


def written(capsys: pytest.CaptureFixture[str], style: LogFormat) -> str:
    log_to_stderr(style, "warning")
    log = logging.getLogger("natsctl.some")
    log.info("not told")
    try:
        int("wrong")
    except ValueError:
        log.exception("sync of %s failed", "shop")
    return capsys.readouterr().err


def test_text_is_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = written(capsys, "text").splitlines()
    assert first[13:] == "ERROR   sync of shop failed"
    assert rest[-1].startswith("ValueError: invalid literal")


def test_json_is_one_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = written(capsys, "json").splitlines()
    fact = json.loads(line)
    assert fact["level"] == "error"
    assert fact["logger"] == "natsctl.some"
    assert fact["message"] == "sync of shop failed"
    assert "ValueError: invalid literal" in fact["exception"]
    assert fact["time"].endswith("Z")
