"""Keys, positions and deletion markers in subjects and headers."""

import pytest

from natsctl.errors import InvalidKeyError, UsageError
from natsctl.jetstream.bucket import (
    Marker,
    marker,
    prefix_of,
    stream_of,
)
from natsctl.jetstream.reader import parse_headers
from natsctl.model.keys import check_key


class TestNames:
    @pytest.mark.parametrize("bucket", ["apps", "a-b_C9", "_", "-"])
    def test_a_bucket_has_a_stream_name_and_a_subject_prefix(self, bucket: str) -> None:
        assert stream_of(bucket) == f"KV_{bucket}"
        assert prefix_of(bucket) == f"$KV.{bucket}."

    @pytest.mark.parametrize("bucket", ["", "a.b", "a b", "a*", ">", "ü", "a/b", "a\n"])
    def test_an_invalid_bucket_name_is_rejected(self, bucket: str) -> None:
        with pytest.raises(UsageError, match="a bucket's name has only letters"):
            stream_of(bucket)


class TestKeys:
    @pytest.mark.parametrize(
        "key",
        [
            *("", ".", "a.", ".a", "a..b", "a b", "a\n", "\na", "*", "a.*", ">", "a.>", "ü", "a:b"),
            *("_kv", "_kv.a", "_kva", "a\x00", "a,b", "$a", "a\\b"),
        ],
    )
    def test_an_invalid_key_is_rejected_with_its_text(self, key: str) -> None:
        with pytest.raises(InvalidKeyError) as raised:
            check_key(key)
        assert repr(key) in str(raised.value)


class TestHeaders:
    def test_invalid_utf_8_is_replaced(self) -> None:
        assert parse_headers(b"NATS/1.0\r\nA: \xff\r\n\r\n") == {"A": "\ufffd"}


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
    def test_markers_of_clients_and_of_the_server_are_deletions(
        self, headers: dict[str, str]
    ) -> None:
        assert marker(headers) is not None

    @pytest.mark.parametrize(
        "headers", [None, {}, {"KV-Operation": "PUT"}, {"Nats-TTL": "1s"}, {"DEL": "KV-Operation"}]
    )
    def test_other_headers_are_no_markers(self, headers: dict[str, str] | None) -> None:
        assert marker(headers) is None

    @pytest.mark.parametrize(
        ("headers", "expected"),
        [
            ({"KV-Operation": "DEL"}, Marker.DELETED),
            ({"KV-Operation": "PURGE"}, Marker.PURGED),
            ({"Nats-Marker-Reason": "MaxAge"}, Marker.DELETED),
            ({"Nats-Marker-Reason": "Purge"}, Marker.PURGED),
        ],
    )
    def test_purges_and_deletions_have_different_markers(
        self, headers: dict[str, str], expected: Marker
    ) -> None:
        assert marker(headers) is expected
