"""Flags, the environment and contexts name the NATS server of a command."""

import pytest

from natsctl import NatsOptions
from natsctl.daemon.settings.load import load_settings
from natsctl.errors import UsageError


def nats(flags: dict[str, str], environ: dict[str, str]) -> NatsOptions:
    return load_settings(flags, environ, config="/dev/null").settings.nats


def test_without_settings_the_default_server_is_used() -> None:
    assert nats({}, {}) == NatsOptions()


@pytest.mark.parametrize("name", ["NATSCTL_SERVER", "NATS_URL"])
def test_the_environment_names_the_server(name: str) -> None:
    assert nats({}, {name: "a,b"}).urls == ("a", "b")


def test_a_flag_overrides_natsctl_server_which_overrides_nats_url() -> None:
    environ = {"NATSCTL_SERVER": "ours", "NATS_URL": "theirs"}
    assert nats({}, environ).servers == ("ours",)
    assert nats({"server": "given"}, environ).servers == ("given",)


def test_a_credential_flag_replaces_the_credentials_of_the_environment() -> None:
    environ = {"NATSCTL_CREDS": "a.creds", "NATSCTL_DOMAIN": "hub"}
    options = nats({"token": "t"}, environ)
    assert (options.token, options.creds, options.domain) == ("t", None, "hub")


def test_a_user_and_password_flag_replaces_a_token_of_the_environment() -> None:
    options = nats({"user": "ann", "password": "p"}, {"NATSCTL_TOKEN": "t", "NATSCTL_NKEY": "n"})
    assert options == NatsOptions(user="ann", password="p")


def test_a_user_flag_keeps_the_password_of_the_environment() -> None:
    options = nats({"user": "ann"}, {"NATSCTL_PASSWORD": "p", "NATSCTL_USER": "bob"})
    assert (options.user, options.password) == ("ann", "p")


def test_a_certificate_flag_drops_the_other_key_and_a_domain_flag_drops_the_api_prefix() -> None:
    environ = {"NATSCTL_TLS_KEY": "a.key", "NATSCTL_API_PREFIX": "hub", "NATSCTL_TLS_CA": "ca"}
    options = nats({"tls_cert": "b.pem", "domain": "edge"}, environ)
    assert options == NatsOptions(tls_cert="b.pem", domain="edge", tls_ca="ca")


def test_a_context_flag_ignores_connection_settings_of_the_environment() -> None:
    environ = {"NATS_URL": "dev", "NATSCTL_TOKEN": "t", "NATSCTL_NAME": "me"}
    options = nats({"context": "prod"}, environ)
    assert options == NatsOptions(context="prod", name="me")


def test_a_flag_overrides_the_context() -> None:
    options = nats({"context": "prod", "server": "a"}, {"NATSCTL_TOKEN": "t"})
    assert options == NatsOptions(context="prod", servers=("a",))


def test_a_timeout_applies_to_connections_and_requests() -> None:
    options = nats({"timeout": "2.5"}, {"NATSCTL_TIMEOUT": "9"})
    assert (options.connect_timeout_s, options.request_timeout_s) == (2.5, 2.5)
    options = nats({}, {"NATSCTL_TIMEOUT": "9", "NATSCTL_CONNECT_TIMEOUT_S": "3"})
    assert (options.connect_timeout_s, options.request_timeout_s) == (3, 9)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_timeout_must_be_a_positive_finite_number_of_seconds(text: str) -> None:
    with pytest.raises(UsageError, match="--timeout"):
        nats({"timeout": text}, {})
    with pytest.raises(UsageError, match="NATSCTL_TIMEOUT"):
        nats({}, {"NATSCTL_TIMEOUT": text})
