"""How keys, positions and markers are written in subjects and headers."""

import pytest

from natsctl.errors import InvalidKeyError, UsageError
from natsctl.jetstream.bucket.codec import (
    Marker,
    Position,
    header_size,
    marker,
    position,
    prefix_of,
    stream_of,
    written_ns,
)
from natsctl.jetstream.connection.headers import parse_headers
from natsctl.model.keys import check_key

PLAIN = b"$JS.ACK.KV_b.cons.1.4105.37.1731500000123456789.12"
DOMAIN = b"$JS.ACK.hub.ACCHASH.KV_b.cons.1.4105.37.1731500000123456789.12"
TOKEN = DOMAIN + b".token"


class TestNames:
    @pytest.mark.parametrize("bucket", ["apps", "a-b_C9", "_", "-"])
    def test_a_bucket_is_a_stream_and_a_subject(self, bucket: str) -> None:
        assert stream_of(bucket) == f"KV_{bucket}"
        assert prefix_of(bucket) == f"$KV.{bucket}."

    @pytest.mark.parametrize("bucket", ["", "a.b", "a b", "a*", ">", "ü", "a/b", "a\n"])
    def test_an_illegal_bucket_is_named(self, bucket: str) -> None:
        with pytest.raises(UsageError, match="a bucket's name has only letters"):
            stream_of(bucket)


class TestKeys:
    @pytest.mark.parametrize(
        "key", ["a", "a.b", "a/b=c", "-_=/", "0", "A.b-C.d_e", "a._kv", "k" * 500, "kv", "_k"]
    )
    def test_a_legal_one_is_returned(self, key: str) -> None:
        assert check_key(key) == key

    @pytest.mark.parametrize(
        "key",
        [
            *("", ".", "a.", ".a", "a..b", "a b", "a\n", "\na", "*", "a.*", ">", "a.>", "ü", "a:b"),
            *("_kv", "_kv.a", "_kva", "a\x00", "a,b", "$a", "a\\b"),
        ],
    )
    def test_an_illegal_one_is_named(self, key: str) -> None:
        with pytest.raises(InvalidKeyError) as raised:
            check_key(key)
        assert repr(key) in str(raised.value)


class TestPosition:
    @pytest.mark.parametrize("reply", [PLAIN, DOMAIN, TOKEN])
    def test_it_is_read_from_every_form_of_the_reply(self, reply: bytes) -> None:
        assert position(reply) == Position(stream=4105, consumer=37, pending=12)

    @pytest.mark.parametrize("reply", [PLAIN, DOMAIN, TOKEN])
    def test_so_is_when_the_message_was_stored(self, reply: bytes) -> None:
        assert written_ns(reply) == 1731500000123456789


class TestHeaders:
    def test_they_are_read_from_a_stored_message(self) -> None:
        block = b"NATS/1.0\r\nKV-Operation: DEL\r\nNats-TTL:  1h \r\nempty:\r\n\r\n"
        assert parse_headers(block) == {"KV-Operation": "DEL", "Nats-TTL": "1h", "empty": ""}

    def test_a_value_may_hold_a_colon(self) -> None:
        assert parse_headers(b"NATS/1.0\r\nurl: nats://a:1\r\n\r\n") == {"url": "nats://a:1"}

    def test_a_status_is_one_of_them(self) -> None:
        assert parse_headers(b"NATS/1.0 100 Idle Heartbeat\r\nA: b\r\n\r\n") == {
            "Status": "100 Idle Heartbeat",
            "A": "b",
        }

    def test_without_any_there_are_none(self) -> None:
        assert parse_headers(b"") == {}

    def test_odd_bytes_harm_nothing(self) -> None:
        assert parse_headers(b"NATS/1.0\r\nA: \xff\r\n\r\n") == {"A": "\ufffd"}

    def test_their_size_is_what_they_take_in_a_message(self) -> None:
        headers = {"Nats-Expected-Last-Subject-Sequence": "0", "KV-Operation": "DEL"}
        block = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 0\r\nKV-Operation: DEL\r\n\r\n"
        assert header_size(headers) == len(block)


class TestMarkers:
    @pytest.mark.parametrize(
        "headers",
        [
            {"KV-Operation": "DEL"},
            {"KV-Operation": "PURGE", "Nats-Rollup": "sub"},
            {"Nats-Marker-Reason": "MaxAge"},
            {"Nats-Marker-Reason": "Purge"},
            {"Nats-Marker-Reason": "Remove"},
        ],
    )
    def test_clients_and_the_server_mark_deletions(self, headers: dict[str, str]) -> None:
        assert marker(headers) is not None

    @pytest.mark.parametrize(
        "headers", [None, {}, {"KV-Operation": "PUT"}, {"Nats-TTL": "1s"}, {"DEL": "KV-Operation"}]
    )
    def test_anything_else_is_a_value(self, headers: dict[str, str] | None) -> None:
        assert marker(headers) is None

    @pytest.mark.parametrize(
        ("headers", "marks"),
        [
            ({"KV-Operation": "DEL"}, Marker.DELETED),
            ({"KV-Operation": "PURGE"}, Marker.PURGED),
            ({"Nats-Marker-Reason": "MaxAge"}, Marker.DELETED),
            ({"Nats-Marker-Reason": "Purge"}, Marker.PURGED),
        ],
    )
    def test_a_purge_is_told_from_a_deletion(self, headers: dict[str, str], marks: Marker) -> None:
        assert marker(headers) is marks
