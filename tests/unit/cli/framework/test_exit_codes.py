"""Errors are told without the secrets in them."""

import pytest

from natsctl.cli.framework.exit_codes import FAILED, USAGE, report, report_error
from natsctl.errors import UsageError


def test_a_url_in_an_error_is_told_without_who_we_are(capsys: pytest.CaptureFixture[str]) -> None:
    report_error("nats://ann:hush@hub:4222 is down")
    assert capsys.readouterr().err == "natsctl: error: nats://***@hub:4222 is down\n"


def test_a_traceback_is_shown_to_whoever_wrote_the_code_and_no_secret_in_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = ExceptionGroup(
        "several", [OSError("at nats://ann:hush@hub"), UsageError("tls://hush@hub is wrong")]
    )
    error.exceptions[0].__cause__ = ValueError("Bearer hushhush")
    assert report(error) == FAILED
    told = capsys.readouterr().err
    assert "OSError: at nats://***@hub\n" in told
    assert "ValueError: Bearer ***\n" in told
    assert "natsctl: error: tls://***@hub is wrong\n" in told
    assert "hush" not in told
    assert report(error.exceptions[1]) == USAGE
