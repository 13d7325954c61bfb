"""Only the browser of the user who started the console gets an answer."""

import pytest

from natsctl.console.http import POLICY, ConsoleAccess, is_loopback


@pytest.mark.parametrize(
    ("host", "accepted"),
    [
        ("127.0.0.1:8222", True),
        ("127.0.0.1:9000", True),  # a forwarded port
        ("localhost:8222", True),
        ("LOCALHOST", True),
        ("[::1]:8222", True),
        ("evil.example:8222", False),
        ("127.0.0.1.evil.example", False),
        ("10.0.0.1:8222", False),
        ("", False),
        (None, False),
        ("[", False),
    ],
)
def test_a_console_on_the_loopback_accepts_only_loopback_host_names(
    host: str | None, *, accepted: bool
) -> None:
    assert ConsoleAccess("127.0.0.1").is_own_name(host) is accepted


@pytest.mark.parametrize(
    ("host", "accepted"),
    [("desk.example:8222", True), ("10.0.0.1", True), ("evil.example", False)],
)
def test_a_console_on_another_address_accepts_the_given_name_and_addresses(
    host: str, *, accepted: bool
) -> None:
    assert ConsoleAccess("desk.example").is_own_name(host) is accepted


def test_the_token_signs_in() -> None:
    access = ConsoleAccess("127.0.0.1")
    assert access.is_signed_in({"Authorization": f"Bearer {access.token}"})


@pytest.mark.parametrize("value", ["", "x", "Bearer ", "Bearer x", "Bearer é", "\udcff"])
def test_nothing_else_signs_in(value: str) -> None:
    access = ConsoleAccess("127.0.0.1")
    assert not access.is_signed_in({"Authorization": value})
    assert not access.is_signed_in({})


def test_the_secrets_of_two_consoles_differ() -> None:
    first_console, second_console = ConsoleAccess("127.0.0.1"), ConsoleAccess("127.0.0.1")
    headers = {"Authorization": f"Bearer {first_console.token}"}
    assert not second_console.is_signed_in(headers)


def test_another_origin_is_not_the_page() -> None:
    host = {"Host": "127.0.0.1:8222"}
    assert ConsoleAccess.is_own_page(host)
    assert ConsoleAccess.is_own_page({**host, "Origin": "http://127.0.0.1:8222"})
    for origin in ("http://127.0.0.1:8223", "http://evil.example", "null", "http://["):
        assert not ConsoleAccess.is_own_page({**host, "Origin": origin})


def test_the_policy_permits_only_files_of_the_console() -> None:
    policy = POLICY["Content-Security-Policy"]
    sources = {source for rule in policy.split("; ") for source in rule.split()[1:]}
    assert sources == {"'none'", "'self'"}
    assert policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("desk", False)],
)
def test_only_loopback_addresses_are_out_of_reach_for_others(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected
