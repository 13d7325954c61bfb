"""How a command is told where NATS is."""

import pytest

from natsctl.cli.connection import nats_options
from natsctl.errors import UsageError
from natsctl.kv.options import NatsOptions


def test_nothing_said_is_the_default_server() -> None:
    assert nats_options({}, {}) == NatsOptions()


@pytest.mark.parametrize("name", ["NATSCTL_SERVER", "NATS_URL"])
def test_the_environment_names_the_server(name: str) -> None:
    assert nats_options({}, {name: "a,b"}).servers == ("a,b",)


def test_our_own_variable_wins_and_an_option_wins_over_both() -> None:
    environ = {"NATSCTL_SERVER": "ours", "NATS_URL": "theirs"}
    assert nats_options({}, environ).servers == ("ours",)
    assert nats_options({"server": "given"}, environ).servers == ("given",)


def test_a_credential_on_the_command_line_replaces_those_of_the_environment() -> None:
    environ = {"NATSCTL_CREDS": "a.creds", "NATSCTL_DOMAIN": "hub"}
    found = nats_options({"token": "t"}, environ)
    assert (found.token, found.creds, found.domain) == ("t", None, "hub")


def test_a_password_may_stay_in_the_environment() -> None:
    found = nats_options({"user": "ann"}, {"NATSCTL_PASSWORD": "p", "NATSCTL_USER": "bob"})
    assert (found.user, found.password) == ("ann", "p")


def test_a_named_context_leaves_the_environment_aside() -> None:
    found = nats_options({"context": "prod"}, {"NATS_URL": "dev", "NATSCTL_TOKEN": "t"})
    assert found == NatsOptions(context="prod")


def test_a_timeout_is_for_connecting_and_for_asking() -> None:
    found = nats_options({"timeout": "2.5"}, {"NATSCTL_TIMEOUT": "9"})
    assert (found.connect_timeout_s, found.request_timeout_s) == (2.5, 2.5)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_is_seconds(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        nats_options({"timeout": text}, {})
    with pytest.raises(UsageError, match="NATSCTL_TIMEOUT"):
        nats_options({}, {"NATSCTL_TIMEOUT": text})
