"""Property tests of ack subjects, keys, subject patterns and NATS headers."""

import re
import string

from hypothesis import given
from hypothesis import strategies as st

from natsctl.errors import InvalidKeyError
from natsctl.jetstream.bucket import header_size, position
from natsctl.jetstream.reader import parse_headers
from natsctl.model.keys import check_key, matches

TOKEN = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=8)
NUMBERS = st.integers(0, 2**63 - 1)
KEY_CHARACTERS = string.ascii_letters + string.digits + "-/_="
KEY_TOKENS = st.text(KEY_CHARACTERS, min_size=1, max_size=6)
KEYS = (
    st.lists(KEY_TOKENS, min_size=1, max_size=4)
    .map(".".join)
    .filter(lambda key: not key.startswith("_kv"))
)


@given(st.lists(TOKEN, min_size=6, max_size=6), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_a_position_is_read_from_every_form_of_the_reply(
    names: list[str], stream: int, consumer: int, stored_ns: int, pending: int
) -> None:
    domain, account, bucket, name, delivered, token = names
    end = f"{bucket}.{name}.{delivered}.{stream}.{consumer}.{stored_ns}.{pending}"
    forms = (
        f"$JS.ACK.{end}",
        f"$JS.ACK.{domain}.{account}.{end}",
        f"$JS.ACK.{domain}.{account}.{end}.{token}",
    )
    for form in forms:
        assert position(form.encode()) == (stream, consumer, stored_ns)


@given(KEYS)
def test_every_legal_key_is_returned(key: str) -> None:
    assert check_key(key) == key


@given(st.text(max_size=12) | st.text(KEY_CHARACTERS + ". *>", max_size=12))
def test_a_key_is_legal_if_and_only_if_its_tokens_are(key: str) -> None:
    tokens = key.split(".")
    legal = all(token and set(token) <= set(KEY_CHARACTERS) for token in tokens)
    try:
        check_key(key)
    except InvalidKeyError:
        assert not legal or key.startswith("_kv")
    else:
        assert legal
        assert not key.startswith("_kv")


def subject_matches(pattern: list[str], tokens: list[str]) -> bool:
    """Match token by token, as a server does."""
    if not pattern:
        return not tokens
    if pattern == [">"]:
        return bool(tokens)
    if not tokens or pattern[0] not in {"*", tokens[0]}:
        return False
    return subject_matches(pattern[1:], tokens[1:])


PATTERNS = st.lists(st.sampled_from(["*", "a", "b", "a-", "a="]), max_size=3).flatmap(
    lambda start: st.sampled_from([[*start, ">"], [*start, "a"]])
)
NEAR = st.lists(st.sampled_from(["a", "b", "a-", "a=", "aa"]), min_size=1, max_size=4)


@given(PATTERNS, NEAR)
def test_a_pattern_matches_the_keys_that_a_server_matches(
    pattern: list[str], key: list[str]
) -> None:
    assert matches(".".join(pattern), ".".join(key)) == subject_matches(pattern, key)


NAMES = st.text(string.ascii_letters + "-", min_size=1, max_size=8)
HEADERS = st.dictionaries(
    NAMES, st.text(string.ascii_letters + string.digits + ":./ ", max_size=8).map(str.strip)
)


@given(HEADERS)
def test_headers_are_read_as_they_were_written_and_their_size_is_exact(
    headers: dict[str, str],
) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    assert parse_headers(block) == headers
    assert header_size(headers) == len(block)


@given(st.binary(max_size=64))
def test_any_header_block_can_be_parsed(block: bytes) -> None:
    for name, value in parse_headers(block).items():
        assert not re.search(r"\r\n", name + value)
