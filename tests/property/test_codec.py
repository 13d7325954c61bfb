"""Keys, headers, markers and layouts of buckets."""

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsctl.errors import InvalidKeyError, StoreDiffersError, UsageError
from natsctl.jetstream.bucket import (
    Layout,
    Marker,
    header_size,
    layout_of,
    marker,
    position,
    prefix_of,
    stream_of,
)
from natsctl.jetstream.reader import parse_headers
from natsctl.model.keys import check_key, matches

# ---- property tests of ack subjects, keys, subject patterns and NATS headers

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


# ---- keys, positions and deletion markers in subjects and headers


@pytest.mark.parametrize("bucket", ["apps", "a-b_C9", "_", "-"])
def test_a_bucket_has_a_stream_name_and_a_subject_prefix(bucket: str) -> None:
    assert stream_of(bucket) == f"KV_{bucket}"
    assert prefix_of(bucket) == f"$KV.{bucket}."


@pytest.mark.parametrize("bucket", ["", "a.b", "a b", "a*", ">", "ü", "a/b", "a\n"])
def test_an_invalid_bucket_name_is_rejected(bucket: str) -> None:
    with pytest.raises(UsageError, match="a bucket's name has only letters"):
        stream_of(bucket)


@pytest.mark.parametrize(
    "key",
    [
        *("", ".", "a.", ".a", "a..b", "a b", "a\n", "\na", "*", "a.*", ">", "a.>", "ü", "a:b"),
        *("_kv", "_kv.a", "_kva", "a\x00", "a,b", "$a", "a\\b"),
    ],
)
def test_an_invalid_key_is_rejected_with_its_text(key: str) -> None:
    with pytest.raises(InvalidKeyError) as raised:
        check_key(key)
    assert repr(key) in str(raised.value)


def test_invalid_utf_8_is_replaced() -> None:
    assert parse_headers(b"NATS/1.0\r\nA: \xff\r\n\r\n") == {"A": "\ufffd"}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"KV-Operation": "DEL"}, Marker.DELETED),
        ({"KV-Operation": "PURGE", "Nats-Rollup": "sub"}, Marker.PURGED),
        ({"Nats-Marker-Reason": "MaxAge"}, Marker.DELETED),
        ({"Nats-Marker-Reason": "Purge"}, Marker.PURGED),
        ({"Nats-Marker-Reason": "Remove"}, Marker.DELETED),
        *((headers, None) for headers in (None, {}, {"KV-Operation": "PUT"}, {"Nats-TTL": "1s"})),
        ({"DEL": "KV-Operation"}, None),
    ],
)
def test_markers_of_clients_and_of_the_server_are_deletions_or_purges(
    headers: dict[str, str] | None, expected: Marker | None
) -> None:
    assert marker(headers) is expected


# ---- the configuration of a stream determines where the keys of a bucket are


def renamed(source: str, *prefixes: str) -> dict[str, Any]:
    transforms = [{"src": f"$KV.{source}.>", "dest": f"{prefix}>"} for prefix in prefixes]
    return {"name": f"KV_{source}", "subject_transforms": transforms}


OF_X = {"name": "KV_b", "subject_transforms": [{"src": "$KV.b.x.>", "dest": ""}]}


@pytest.mark.parametrize(
    ("bucket", "config", "layout"),
    [
        ("b", {}, Layout("$KV.b.", history=-1)),
        (
            "b",
            {"max_msgs_per_subject": 5, "allow_msg_ttl": True},
            Layout("$KV.b.", history=5, expiring=True),
        ),
        # until a message shows another prefix
        ("m", {"mirror": {"name": "KV_b"}}, Layout("$KV.b.", "KV_b", history=-1, settled=False)),
        ("m", {"mirror": renamed("b", "$KV.m.")}, Layout("$KV.m.", "KV_b", history=-1)),
        ("m", {"mirror": OF_X}, Layout("$KV.b.", "KV_b", history=-1)),
        ("b", {"sources": [renamed("a", "$KV.b.")]}, Layout("$KV.b.", history=-1)),
    ],
    ids=["all revisions", "some", "mirror", "renamed mirror", "mirror of a part", "source"],
)
def test_the_layout_of_a_bucket_follows_from_its_configuration(
    bucket: str, config: dict[str, Any], layout: Layout
) -> None:
    assert layout_of(bucket, config) == layout


def test_a_mirror_with_several_prefixes_is_refused() -> None:
    config = {"mirror": renamed("b", "$KV.y.", "$KV.x.")}
    with pytest.raises(StoreDiffersError, match=r"under several subjects, \$KV\.x\. and \$KV\.y\."):
        layout_of("m", config)


def test_a_source_with_another_prefix_is_refused() -> None:
    with pytest.raises(
        StoreDiffersError, match=r"bucket b takes messages of KV_a under \$KV\.a\.>"
    ):
        layout_of("b", {"sources": [renamed("c", "$KV.b."), {"name": "KV_a"}]})
