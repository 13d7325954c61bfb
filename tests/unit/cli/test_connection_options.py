"""How a command is told where NATS is."""

import pytest

from natsctl.daemon.settings.load import load_settings
from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions


def nats(flags: dict[str, str], environ: dict[str, str]) -> NatsOptions:
    return load_settings(flags, environ, config="/dev/null").settings.nats


def test_nothing_said_is_the_default_server() -> None:
    assert nats({}, {}) == NatsOptions()


@pytest.mark.parametrize("name", ["NATSCTL_SERVER", "NATS_URL"])
def test_the_environment_names_the_server(name: str) -> None:
    assert nats({}, {name: "a,b"}).urls == ("a", "b")


def test_our_own_variable_wins_and_an_option_wins_over_both() -> None:
    environ = {"NATSCTL_SERVER": "ours", "NATS_URL": "theirs"}
    assert nats({}, environ).servers == ("ours",)
    assert nats({"server": "given"}, environ).servers == ("given",)


def test_a_credential_on_the_command_line_replaces_those_of_the_environment() -> None:
    environ = {"NATSCTL_CREDS": "a.creds", "NATSCTL_DOMAIN": "hub"}
    found = nats({"token": "t"}, environ)
    assert (found.token, found.creds, found.domain) == ("t", None, "hub")


def test_a_login_on_the_command_line_replaces_a_token_of_the_environment() -> None:
    found = nats({"user": "ann", "password": "p"}, {"NATSCTL_TOKEN": "t", "NATSCTL_NKEY": "n"})
    assert found == NatsOptions(user="ann", password="p")


def test_a_password_may_stay_in_the_environment() -> None:
    found = nats({"user": "ann"}, {"NATSCTL_PASSWORD": "p", "NATSCTL_USER": "bob"})
    assert (found.user, found.password) == ("ann", "p")


def test_a_certificate_goes_with_its_own_key_and_a_domain_without_another_s_prefix() -> None:
    environ = {"NATSCTL_TLS_KEY": "a.key", "NATSCTL_API_PREFIX": "hub", "NATSCTL_TLS_CA": "ca"}
    found = nats({"tls_cert": "b.pem", "domain": "edge"}, environ)
    assert found == NatsOptions(tls_cert="b.pem", domain="edge", tls_ca="ca")


def test_a_named_context_leaves_aside_what_a_context_may_say() -> None:
    environ = {"NATS_URL": "dev", "NATSCTL_TOKEN": "t", "NATSCTL_NAME": "me"}
    found = nats({"context": "prod"}, environ)
    assert found == NatsOptions(context="prod", name="me")


def test_what_is_named_beside_a_context_goes_over_it() -> None:
    found = nats({"context": "prod", "server": "a"}, {"NATSCTL_TOKEN": "t"})
    assert found == NatsOptions(context="prod", servers=("a",))


def test_a_timeout_is_for_connecting_and_for_asking() -> None:
    found = nats({"timeout": "2.5"}, {"NATSCTL_TIMEOUT": "9"})
    assert (found.connect_timeout_s, found.request_timeout_s) == (2.5, 2.5)
    found = nats({}, {"NATSCTL_TIMEOUT": "9", "NATSCTL_CONNECT_TIMEOUT_S": "3"})
    assert (found.connect_timeout_s, found.request_timeout_s) == (3, 9)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_is_seconds(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        nats({"timeout": text}, {})
    with pytest.raises(UsageError, match="NATSCTL_TIMEOUT"):
        nats({}, {"NATSCTL_TIMEOUT": text})
