"""Errors are reported without secrets and give the exit code of the command."""

import pytest

from natsctl.cli.command import FAILED, USAGE, report, report_error
from natsctl.errors import UsageError


def test_a_url_in_an_error_is_shown_without_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    report_error("nats://ann:hush@hub:4222 is down")
    assert capsys.readouterr().err == "natsctl: error: nats://***@hub:4222 is down\n"


def test_an_unexpected_error_is_reported_with_a_traceback_without_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = ExceptionGroup(
        "several", [OSError("at nats://ann:hush@hub"), UsageError("tls://hush@hub is wrong")]
    )
    error.exceptions[0].__cause__ = ValueError("Bearer hushhush")
    assert report(error) == FAILED
    reported = capsys.readouterr().err
    assert "OSError: at nats://***@hub\n" in reported
    assert "ValueError: Bearer ***\n" in reported
    assert "natsctl: error: tls://***@hub is wrong\n" in reported
    assert "hush" not in reported
    assert report(error.exceptions[1]) == USAGE
