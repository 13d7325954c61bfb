"""The options of a connection to NATS: contexts, servers, precedence and hidden secrets."""

import io
import json
from pathlib import Path
from urllib.parse import urlparse

import pytest
from rich.console import Console

from natsctl import NatsOptions
from natsctl.errors import UsageError
from natsctl.jetstream.options import Server, arguments, load_context, parse, peer, redacted

# ---- nATS options: defaults, precedence, contradictions and hidden secrets

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


def test_over_keeps_given_options_takes_the_others_and_never_mixes_credentials() -> None:
    base = NatsOptions(servers=("nats://two",), tls_ca="ca.pem", request_timeout_s=9)
    assert NatsOptions(servers=("nats://one",)).over(base) == NatsOptions(
        servers=("nats://one",), tls_ca="ca.pem", request_timeout_s=9
    )
    mixed = NatsOptions(creds="a.creds").over(SECRETS)
    assert (mixed.creds, mixed.user, mixed.password, mixed.token) == ("a.creds", None, None, None)


def test_the_api_prefix_follows_from_the_options() -> None:
    assert NatsOptions().prefix == "$JS.API"
    assert NatsOptions(domain="edge").prefix == "$JS.edge.API"
    assert NatsOptions(api_prefix="hub.js.").prefix == "hub.js"
    assert NatsOptions(domain="edge").over(NatsOptions(api_prefix="hub")).prefix == "$JS.edge.API"


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


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (NatsOptions(user="ann", password="s3cret"), "nats://bob:other@one"),
        (NatsOptions(), "nats://ann:s3cret@one"),
    ],
)
def test_the_user_is_that_of_the_options_or_of_the_url(options: NatsOptions, url: str) -> None:
    sent = arguments(options, parse(url))
    assert (sent["user"], sent["password"]) == ("ann", "s3cret")


# ---- contexts of the nats CLI are loaded, or rejected with the name of the file


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    return folder


def save(folder: Path, name: str, **context: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"description": "", "url": ""} | context))


def test_every_context_field_sets_its_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    same = {"user": "ann", "password": "s3cret", "token": "s3cret2", "tls_first": True}
    same["inbox_prefix"] = "_MINE"
    files = {"creds": "~/a.creds", "nkey": "$HOME/a.nk", "cert": "/c.pem", "key": "/k.pem"}
    url = "nats://one,nats://two"
    others = {"ca": "/ca.pem", "jetstream_domain": "edge", "color_scheme": "bright"}
    save(folder, "edge", url=url, **same, **files, **others)
    assert load_context("edge") == NatsOptions(
        servers=(url,),
        creds="/home/ann/a.creds",
        nkey="/home/ann/a.nk",
        tls_cert="/c.pem",
        tls_key="/k.pem",
        tls_ca="/ca.pem",
        domain="edge",
        **same,  # type: ignore[arg-type]  # of several types
    )


def test_the_error_of_an_unknown_name_lists_the_nearest_contexts_first(folder: Path) -> None:
    for name in ("alpha", "production", "prod-eu", "zeta"):
        save(folder, name)
    with pytest.raises(UsageError, match=r"prod\.json; the contexts are prod-eu, production"):
        load_context("prod")


@pytest.mark.parametrize("text", ['{"password": "s3cret"', '{"password": ["s3cret"]}', "\xff"])
def test_the_error_of_a_damaged_context_names_the_file_without_its_content(
    folder: Path, text: str
) -> None:
    (folder / "edge.json").write_text(text, "latin-1")
    with pytest.raises(UsageError, match=r"edge\.json is not a valid context in JSON") as caught:
        load_context("edge")
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("field", ["nsc", "user_jwt", "socks_proxy"])
def test_an_unsupported_context_field_is_rejected(folder: Path, field: str) -> None:
    save(folder, "edge", **{field: "something"})
    refused = rf"edge\.json uses {field}, which natsctl does not support"
    with pytest.raises(UsageError, match=refused):
        load_context("edge")


# ---- servers are parsed from URLs, tried in turn, and discovered from the cluster


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("one", Server("nats://one:4222")),
        ("one:1", Server("nats://one:1")),
        ("tls://one", Server("tls://one:4222")),
        ("wss://one/nats", Server("wss://one:443/nats")),
        ("nats://[::1]", Server("nats://[::1]:4222")),
        ("nats://ann:s3%2Fcret@one", Server("nats://one:4222", user="ann", password="s3/cret")),
        ("nats://s3%40cret@one", Server("nats://one:4222", token="s3@cret")),
    ],
)
def test_a_url_has_a_server_and_optional_credentials(url: str, server: Server) -> None:
    assert parse(url) == server
    assert repr(parse(url)) == server.address


@pytest.mark.parametrize(
    "url",
    ["", "http://one", "nats://", "nats://one:port", "nats://ann:s3cret@one:port", "nats://["],
)
def test_an_invalid_url_is_rejected_without_its_password(url: str) -> None:
    with pytest.raises(UsageError, match="not the URL of a NATS server") as caught:
        parse(url)
    assert "s3cret" not in str(caught.value)


def test_a_cluster_member_takes_the_credentials_and_the_certificate_name_of_its_announcer() -> None:
    announcer = parse("nats://ann:s3cret@one")
    assert peer(urlparse("nats://10.0.0.2:4222"), announcer) == Server(
        "nats://10.0.0.2:4222", user="ann", password="s3cret", tls_name="one"
    )
    assert peer(urlparse("nats://two:4222"), announcer).tls_name is None
