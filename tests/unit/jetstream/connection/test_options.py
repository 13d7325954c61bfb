"""NATS options: defaults, precedence, contradictions and hidden secrets."""

import io

import pytest
from rich.console import Console

from natsctl import NatsOptions
from natsctl.errors import UsageError
from natsctl.jetstream.options import redacted

SECRETS = NatsOptions(
    servers=("nats://ann:s3cret@one:4222",), user="ann", password="s3cret", token="s3cret"
)


def test_no_representation_shows_a_secret() -> None:
    shown = io.StringIO()
    Console(file=shown).print(SECRETS)
    for text in (repr(SECRETS), str(SECRETS), f"{SECRETS!r}", shown.getvalue()):
        assert "s3cret" not in text
        assert "ann" in text
        assert "one:4222" in text


def test_the_repr_shows_only_given_options() -> None:
    assert repr(NatsOptions()) == "NatsOptions()"
    assert repr(NatsOptions(creds="a.creds")) == "NatsOptions(creds='a.creds')"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://one:4222", "nats://one:4222"),
        ("nats://ann:s3cret@one", "nats://***@one"),
        ("nats://s3cret@one", "nats://***@one"),
        ("ann:s3cret@one", "***@one"),
        ("nats://ann:s3@cr/et@one", "nats://***@one"),
        ("nats://ann:s3,cret@one", "nats://***@one"),
        (
            "nats://ann:s3cret@one,tls://two,nats://s3cret@three",
            "nats://***@one,tls://two,nats://***@three",
        ),
    ],
)
def test_a_url_is_shown_without_credentials(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_one_text_can_list_several_servers() -> None:
    options = NatsOptions(servers=("nats://one, nats://ann:s3,cret@two", "three,four:1,"))
    assert options.urls == ("nats://one", "nats://ann:s3,cret@two", "three", "four:1")


def test_the_local_server_is_the_default() -> None:
    assert NatsOptions().urls == ("nats://127.0.0.1:4222",)


def test_over_keeps_given_options_and_takes_the_others() -> None:
    base = NatsOptions(servers=("nats://two",), tls_ca="ca.pem", request_timeout_s=9)
    assert NatsOptions(servers=("nats://one",)).over(base) == NatsOptions(
        servers=("nats://one",), tls_ca="ca.pem", request_timeout_s=9
    )


def test_credentials_are_never_mixed() -> None:
    assert NatsOptions(creds="a.creds").over(SECRETS).identity == "the credentials in a.creds"
    mixed = NatsOptions(creds="a.creds").over(SECRETS)
    assert (mixed.user, mixed.password, mixed.token) == (None, None, None)
    assert NatsOptions(domain="edge").over(NatsOptions(api_prefix="hub")).prefix == "$JS.edge.API"


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        (NatsOptions(), "$JS.API"),
        (NatsOptions(domain="edge"), "$JS.edge.API"),
        (NatsOptions(api_prefix="hub.js."), "hub.js"),
    ],
)
def test_the_api_prefix_follows_from_the_options(options: NatsOptions, prefix: str) -> None:
    assert options.prefix == prefix


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (NatsOptions(creds="a", nkey="b"), "creds and nkey exclude each other"),
        (NatsOptions(user="ann"), "'ann' is given without a password"),
        (NatsOptions(password="s3cret"), "password is given without a user"),
        (NatsOptions(tls_cert="a"), "tls_cert and tls_key belong together"),
        (NatsOptions(domain="a", api_prefix="b"), "domain and api_prefix exclude each other"),
    ],
)
def test_contradicting_options_are_rejected(options: NatsOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        options.check()
    assert "s3cret" not in str(caught.value)
