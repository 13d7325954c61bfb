"""An address to listen on has a host and a port and is formatted as it was parsed."""

import pytest

from natsctl.daemon.settings.address import Address
from natsctl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:0", "localhost", 0),
        (":65535", "", 65535),
        ("[::1]:8080", "::1", 8080),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert Address.parse(text) == Address(host, port)
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "8080", "localhost", "localhost:", "localhost:http", "a:-1", "a:65536"),
        *("::1:8080", "http://localhost:80", "a:b:80", "[::1]", "[::1:80", "user@host:80"),
        "a:\u0668\u0660",  # Arabic digits, which a socket does not accept
    ],
)
def test_an_invalid_address_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an address to listen on: write HOST:PORT, for"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("listening", "nearby"),
    [
        *((":80", "127.0.0.1:80"), ("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80")),
        *(("10.0.0.1:80", "10.0.0.1:80"), ("localhost:80", "localhost:80")),
    ],
)
def test_the_nearby_address_of_every_interface_is_the_loopback(listening: str, nearby: str) -> None:
    assert str(Address.parse(listening).nearby) == nearby
