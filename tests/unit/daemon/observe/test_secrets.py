"""What looks like a secret is hidden, and nothing else."""

import logging
from urllib.parse import quote

import pytest

from natsctl.daemon.observe.secrets import Hider, HidingFormatter, secrets_of
from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.kubernetes.access.options import KubeOptions

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.dGhlIHNpZ25hdHVyZQ"
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\nIIKz\n-----END EC PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nats://ann:p@hub:4222 is down", "nats://***@hub:4222 is down"),
        ("tls://token@a,nats://u:p/w:x@b", "tls://***@a,nats://***@b"),
        ("nats://u:p@ss@hub", "nats://***@hub"),
        (f"the seed {SEED}.", "the seed ***."),
        (f"creds\n{JWT}\n---", "creds\n***\n---"),
        (f"a {KEY} b", "a -----BEGIN *** b"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEv", "-----BEGIN ***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("authorization: basic YW5uOnA=", "authorization: basic ***"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, shown: str) -> None:
    assert Hider()(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "nats://hub:4222, tls://other and https://10.0.0.1:6443/api?a=b",
        "mail ann@example.com about SUN and SUNDAY",
        "sync of team-a.shop failed: the bearer of news",
        "-----BEGIN CERTIFICATE-----\nMIIB",
        "",
    ],
)
def test_anything_else_is_shown(text: str) -> None:
    assert Hider()(text) == text


def test_secrets_that_are_known_are_hidden_wherever_they_are() -> None:
    hide = Hider(["correct horse", "correct horse battery", "", " "])
    assert hide("xcorrect horse batteryx, correct horse") == "x***x, ***"


def test_a_secret_is_hidden_as_it_stands_in_a_repr_and_in_a_url() -> None:
    secret = "it's \\ 100% @home"
    hide = Hider([secret])
    assert hide(f"{secret} {secret!r} nats:u:{quote(secret, safe='')}") == '*** "***" nats:u:***'


def test_a_short_secret_is_hidden_as_a_word() -> None:
    assert Hider(["s3t"])("s3t: set s3t3 of (s3t)") == "***: set s3t3 of (***)"


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


def test_a_formatter_hides_in_messages_and_tracebacks() -> None:
    formatter = HidingFormatter("natsctl: %(message)s")
    error = OSError("nats://u:hush@b")
    record = logging.makeLogRecord(
        {"msg": "at %s", "args": ("nats://u:hush@a",), "exc_info": (OSError, error, None)}
    )
    assert formatter.format(record) == "natsctl: at nats://***@a\n  OSError: nats://***@b"
