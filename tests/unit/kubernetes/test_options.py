"""Kubernetes options: defaults, contradictions and the hidden token."""

import io

import pytest
from rich.console import Console

from natsctl import KubeOptions
from natsctl.errors import UsageError


def test_no_representation_shows_the_token() -> None:
    options = KubeOptions(server="https://one:6443", token="s3cret")
    shown = io.StringIO()
    Console(file=shown).print(options)
    for text in (repr(options), str(options), f"{options!r}", shown.getvalue()):
        assert "s3cret" not in text
        assert "one:6443" in text


def test_the_repr_shows_only_given_options() -> None:
    assert repr(KubeOptions()) == "KubeOptions()"
    assert repr(KubeOptions(context="edge")) == "KubeOptions(context='edge')"


def test_the_defaults_are_valid() -> None:
    KubeOptions().check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (KubeOptions(timeout_s=0), "timeout_s must be above 0"),
        (KubeOptions(in_flight_max=0), "in_flight_max must be above 0"),
        (KubeOptions(attempts_max=0), "attempts_max must be above 0"),
        (KubeOptions(tls_ca="ca.pem", tls_insecure=True), "exclude each other"),
        (KubeOptions(server="one:6443"), "not a URL"),
        (KubeOptions(token=" "), "token is empty"),
    ],
)
def test_invalid_options_are_rejected(options: KubeOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options.check()
