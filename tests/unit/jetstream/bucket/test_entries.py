"""Entries of a bucket as rows of a table and as documents."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from natsctl.cli.values import DesiredObject, RawValue, value_of_document
from natsctl.jetstream.bucket import Message
from natsctl.model.readiness import ready
from natsctl.operate.entries import (
    age,
    cells_of,
    described,
    headings_of,
    object_in,
    preview,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def entry(value: object, key: str = "a", revision: int = 7) -> Message:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    created = (NOW - timedelta(seconds=200)).isoformat()
    return Message(key, revision, data, marker=None, created=created)


@pytest.mark.parametrize("value", [{"spec": 1}, {"metadata": {}}, {"spec": None, "x": 1}])
def test_json_with_a_spec_or_metadata_is_an_object(value: object) -> None:
    assert object_in(msgspec.json.encode(value)) == value


@pytest.mark.parametrize("value", [b"", b"text", b"5", b"[]", b"{}", b'{"metadata":"x"}', b"\xff"])
def test_other_values_are_not_objects(value: bytes) -> None:
    assert object_in(value) is None


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({"spec": 1}, "-"),
        ({"spec": 1, "status": {"ready": True}}, "True"),
        ({"spec": 1, "status": {"ready": False}}, "False"),
        ({"spec": 1, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "False"),
        ({"spec": 1, "status": {"conditions": [{"type": "Synced", "status": "True"}]}}, "-"),
        (
            {"metadata": {"generation": 3}, "status": {"observedGeneration": 2, "ready": True}},
            "Pending",
        ),
        ({"metadata": {"deletionTimestamp": "2026-01-01"}, "status": {"ready": True}}, "Deleting"),
        ({"spec": 1, "status": "odd"}, "-"),
        (None, "-"),
    ],
)
def test_the_ready_column_shows_the_readiness_of_an_object(
    document: dict[str, object] | None, shown: str
) -> None:
    assert ready(document) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "0s"),
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (200, "3m20s"),
        (12 * 60 + 5, "12m"),
        (2 * 3600 + 300, "2h5m"),
        (30 * 3600, "1d6h"),
        (80 * 86400, "80d"),
    ],
)
def test_an_age_has_at_most_two_units(seconds: int, shown: str) -> None:
    assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == shown


def test_an_unknown_age_is_a_dash() -> None:
    assert age("", NOW) == "-"


def test_an_age_is_computed_from_a_time_with_nanoseconds() -> None:
    assert age("2026-03-01T11:59:50.123456789Z", NOW) == "9s"


def test_a_table_of_objects_has_no_value_column() -> None:
    headings = headings_of([entry({"spec": 1})])
    assert headings == ["KEY", "REVISION", "GENERATION", "READY", "AGE"]
    document = {"metadata": {"generation": 2}, "spec": 1, "status": {"ready": True}}
    assert cells_of(entry(document), headings, NOW) == ["a", "7", "2", "True", "3m20s"]


def test_a_table_of_values_has_no_generation_column() -> None:
    headings = headings_of([entry(b"some\ntext")])
    assert headings == ["KEY", "REVISION", "AGE", "VALUE"]
    assert cells_of(entry(b"some\ntext"), headings, NOW)[-1] == "some text"


def test_a_table_of_objects_and_values_has_the_columns_of_both() -> None:
    headings = headings_of([entry({"spec": 1}), entry(b"x")], wide=True)
    assert headings[-4:] == ["LABELS", "FINALIZERS", "UID", "VALUE"]
    labelled = entry({"metadata": {"labels": {"a": "b"}, "finalizers": ["x/y"], "uid": "u"}})
    assert cells_of(labelled, headings, NOW)[-4:] == ["a=b", "x/y", "u", "-"]


def test_a_long_value_is_cut_and_binary_data_is_shown_as_a_count() -> None:
    assert preview(b"x" * 100) == "x" * 59 + "…"
    assert preview(b"\xff\xfe") == "(2 bytes)"


def test_a_described_object_has_its_bucket_key_and_revision() -> None:
    assert described("b", entry({"spec": {"x": 1}, "other": 2})) == {
        "bucket": "b",
        "key": "a",
        "revision": 7,
        "spec": {"x": 1},
        "other": 2,
    }


@pytest.mark.parametrize(
    "value",
    [b"", b"text", b'"quoted"', b"5", b"[1,2]", b'{"a":1}', b"\xff\x00", b'{"spec":1,"key":"x"}'],
)
def test_a_described_value_can_be_applied_again(value: bytes) -> None:
    parsed = value_of_document(described("b", entry(value)))
    assert isinstance(parsed, RawValue)
    assert parsed.value == value


def test_a_described_object_can_be_applied_again() -> None:
    document = {"metadata": {"labels": {"a": "b"}}, "spec": {"x": 1}, "status": {"ready": True}}
    assert value_of_document(described("b", entry(document))) == DesiredObject(document)
