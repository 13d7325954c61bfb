"""Servers are parsed from URLs, tried in turn, and discovered from the cluster."""

from urllib.parse import urlparse

import pytest

from natsctl.errors import UsageError
from natsctl.jetstream.options import Server, Servers, parse


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


def test_a_server_that_failed_is_tried_last() -> None:
    servers = Servers(["nats://one", "nats://two", "nats://three"])
    first, *later_servers = servers.round()
    servers.failed(first)
    assert servers.round() == (*later_servers, first)


def test_announced_servers_follow_the_configured_servers() -> None:
    servers = Servers(["nats://ann:s3cret@one"])
    (configured,) = servers.round()
    servers.announce([urlparse("nats://one:4222"), urlparse("nats://10.0.0.2:4222")], configured)
    assert servers.round() == (
        configured,
        Server("nats://10.0.0.2:4222", user="ann", password="s3cret", tls_name="one"),
    )
    assert str(servers) == "nats://one:4222"


def test_a_new_announcement_replaces_the_previous_one() -> None:
    servers = Servers(["nats://one"])
    (configured,) = servers.round()
    servers.announce([urlparse("nats://two:4222")], configured)
    servers.announce([urlparse("nats://three:4222")], configured)
    assert [server.address for server in servers.round()][1:] == ["nats://three:4222"]
