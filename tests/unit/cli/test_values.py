"""What commands read and show: values, entries and durations."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from natsctl.cli.output import yaml_text
from natsctl.cli.values import (
    DesiredObject,
    RawValue,
    apply,
    keep_reserved,
    parse_value,
    replace,
    value_of_document,
)
from natsctl.errors import UsageError
from natsctl.jetstream.bucket import Message
from natsctl.model import documents
from natsctl.model.readiness import ready
from natsctl.model.store import Stored
from natsctl.operate.entries import (
    age,
    cells_of,
    described,
    headings_of,
    object_in,
    preview,
)
from natsctl.operate.pauses import duration_in, new_pause

# ---- `put` and `apply` compute the new value of a key from the stored and the given one

BOOKKEEPING = {"generation": 3, "uid": "u", "finalizers": ["x/y"]}
CURRENT = {
    "metadata": {**BOOKKEEPING, "labels": {"team": "a", "tier": "edge"}},
    "spec": {"text": "hi", "replicas": 2},
    "status": {"ready": True},
    "note": "a field of no type",
}


def stored(value: object) -> Stored:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return Stored("shop", 5, data)


def decoded(value: bytes) -> dict[str, dict[str, object]]:
    return msgspec.json.decode(value, type=dict[str, dict[str, object]])


RESERVED = {
    "natsctl.io/external-name": "disk-1",
    "natsctl.io/paused": "true",
    "krateo.io/external-create-pending": "2026-01-01T00:00:00Z",
    "example.org/external-name": "theirs",
}


def annotated(annotations: dict[str, str | None]) -> dict[str, object]:
    return {"spec": {}, "metadata": {"annotations": annotations}}


def test_replace_keeps_reserved_annotations() -> None:
    current = stored(annotated({**RESERVED, "mine": "1"}))
    new = keep_reserved(current, DesiredObject({"spec": {"a": 1}}))
    assert decoded(replace(current, new))["metadata"]["annotations"] == RESERVED


def test_a_given_reserved_annotation_replaces_the_stored_one() -> None:
    given = annotated({"natsctl.io/external-name": "disk-2", "natsctl.io/paused": None, "b": "1"})
    current = stored(annotated(dict(RESERVED)))
    new = keep_reserved(current, DesiredObject(given))
    stored_annotations = decoded(replace(current, new))["metadata"]["annotations"]
    expected = {**RESERVED, "natsctl.io/external-name": "disk-2", "b": "1"}
    del expected["natsctl.io/paused"]
    assert stored_annotations == expected


@pytest.mark.parametrize("data", [b'{"spec": {"a": 1}}', b"spec: {a: 1}", b"spec:\n  a: 1\n"])
def test_json_and_yaml_are_parsed_as_objects(data: bytes) -> None:
    assert parse_value(data) == DesiredObject({"spec": {"a": 1}})


@pytest.mark.parametrize("data", [b"text", b"a: 1", b'{"a": 1}', b"[1]", b"", b"\xff", b"{{{"])
def test_a_value_that_is_no_object_is_kept_byte_by_byte(data: bytes) -> None:
    assert parse_value(data) == RawValue(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"spec": {"text": "hi"}', "but got '<stream end>' in line 1"),
        (b"spec:\n  text: hi\n text: ho\n", "in line 3"),
        (b"---\nmetadata: {labels: {a: b}\nspec: {}\n", "in line 3"),
        (b"{'spec': \xff", "it is not text"),
        (b'{"spec": {"text": "\\ud800"}}', "half of a surrogate pair"),
        (b'{"spec": {"\\ud800": 1}}', "half of a surrogate pair"),
        (b'{"spec": {},\n "spec": {"a": 1}}', "found the field 'spec' twice in line 2"),
        (b"spec:\n  a: 1\n  b: [{c: 2}]\n  a: 3\n", "found the field 'a' twice in line 4"),
    ],
)
def test_a_malformed_object_is_rejected_instead_of_stored_as_text(
    data: bytes, message: str
) -> None:
    with pytest.raises(UsageError, match="begins like an object") as caught:
        parse_value(data)
    assert message in str(caught.value)
    assert str(caught.value).endswith("; correct it, or store it as it is with --raw")


def test_a_merge_key_may_give_a_field_that_the_mapping_replaces() -> None:
    data = b"base: &base {a: 1, b: 2}\nspec: {<<: *base, a: 3}\n"
    assert parse_value(data) == DesiredObject({"base": {"a": 1, "b": 2}, "spec": {"a": 3, "b": 2}})


def test_a_yaml_file_becomes_json() -> None:
    assert parse_value(b"a: 1", file="x.yaml") == RawValue(b'{"a":1}')


def test_yaml_dates_become_text() -> None:
    assert parse_value(b"spec: {from: 2026-01-31}") == DesiredObject(
        {"spec": {"from": "2026-01-31"}}
    )


def test_put_rejects_a_document_for_apply() -> None:
    with pytest.raises(UsageError, match="natsctl apply"):
        parse_value(b"{bucket: b, key: k, spec: 1}")


def test_put_replaces_labels_and_spec_and_keeps_the_bookkeeping() -> None:
    new = DesiredObject({"metadata": {"labels": {"team": "b"}}, "spec": {"text": "ho"}})
    assert msgspec.json.decode(replace(stored(CURRENT), new)) == {
        "metadata": {**BOOKKEEPING, "generation": 4, "labels": {"team": "b"}},
        "spec": {"text": "ho"},
        "status": {"ready": True},
    }


def test_put_ignores_bookkeeping_in_the_given_object() -> None:
    new = DesiredObject(
        {"metadata": {"generation": 99, "uid": "z"}, "spec": {}, "status": {"ready": True}}
    )
    created = decoded(replace(None, new))
    assert created["metadata"]["generation"] == 1
    assert created["metadata"]["uid"] not in {"z", ""}
    assert "status" not in created


def test_apply_adds_labels_and_keeps_other_fields() -> None:
    new = DesiredObject(
        {"metadata": {"labels": {"team": "b", "tier": None}}, "spec": {"text": "ho"}}
    )
    assert msgspec.json.decode(apply(stored(CURRENT), new)) == {
        **CURRENT,
        "metadata": {**BOOKKEEPING, "generation": 4, "labels": {"team": "b"}},
        "spec": {"text": "ho"},
    }


@pytest.mark.parametrize("change", [replace, apply])
def test_an_equal_object_changes_nothing(change: type) -> None:
    current = stored(CURRENT)
    equal = DesiredObject({**CURRENT, "status": {"ready": False}})
    assert change(current, equal) is current.value
    once = stored(change(None, DesiredObject({"spec": {"a": 1}})))
    assert change(once, DesiredObject({"spec": {"a": 1}})) is once.value


@pytest.mark.parametrize("change", [replace, apply])
def test_a_value_cannot_replace_an_object(change: type) -> None:
    with pytest.raises(UsageError, match="shop is an object"):
        change(stored(CURRENT), RawValue(b"text"))


@pytest.mark.parametrize("change", [replace, apply])
def test_an_object_can_replace_a_value(change: type) -> None:
    created = decoded(change(stored(b"text"), DesiredObject({"spec": {"a": 1}})))
    assert created["spec"] == {"a": 1}
    assert created["metadata"]["generation"] == 1


@pytest.mark.parametrize("change", [replace, apply])
def test_json_with_other_formatting_is_the_same_value(change: type) -> None:
    current = stored(b'{"a": 1,  "b": 2}')
    assert change(current, RawValue(b'{"b":2,"a":1}')) is current.value
    assert change(stored(b"5"), RawValue(b"5.0")) == b"5.0"


@pytest.mark.parametrize("metadata", [{"labels": {"a": 1}}, {"annotations": ["x"]}])
def test_an_object_with_invalid_metadata_is_rejected(metadata: object) -> None:
    with pytest.raises(UsageError, match="would not be valid"):
        replace(None, DesiredObject({"metadata": metadata, "spec": 1}))


@pytest.mark.parametrize("document", [{}, {"text": "hi"}, {"value": 1, "spec": 2, "x": 3, "y": 1}])
def test_a_document_has_a_spec_or_a_value(document: dict[str, object]) -> None:
    if "spec" in document:
        assert value_of_document(document) == DesiredObject(document)
        return
    with pytest.raises(UsageError, match="no spec, and no value"):
        value_of_document(document)


def test_invalid_base64_is_rejected() -> None:
    with pytest.raises(UsageError, match="base64"):
        value_of_document({"base64": "!"})


ODD = b'{"metadata":{"annotations":{}},"spec":{"a":1},"odd":[12345678901234567890.5,1e400,1.0,1]}'


def test_numbers_beyond_the_range_of_a_float_survive_every_write() -> None:
    current = Stored("shop", 1, ODD)
    kept = b'"odd":[12345678901234567890.5,1e400,1.0,1]'
    assert kept in apply(current, parse_value(b'{"spec":{"a":2}}'))
    assert kept in replace(None, parse_value(ODD))
    assert kept in replace(None, parse_value(yaml_text(documents.parse(ODD)).encode()))


def test_a_difference_beyond_the_precision_of_a_float_is_a_change() -> None:
    current = Stored(
        "shop", 1, replace(None, parse_value(b'{"spec":{"a":12345678901234567890.5}}'))
    )
    reparsed = replace(current, parse_value(b"spec: {a: 12345678901234567890.5}"))
    assert reparsed == current.value
    changed = replace(current, parse_value(b"spec: {a: 12345678901234567890.6}"))
    assert b"12345678901234567890.6" in changed


# ---- entries of a bucket as rows of a table and as documents

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


# ---- the duration of a pause is read from a text


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("1d12h", timedelta(days=1, hours=12)),
        ("36500d", timedelta(days=36_500)),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, duration: timedelta) -> None:
    assert duration_in(text) == duration
    assert new_pause(duration=duration).ends is not None


@pytest.mark.parametrize("text", ["0s", "0d0h", "36501d", "3000000d", "9" * 5000 + "s"])
def test_a_duration_has_limits(text: str) -> None:
    with pytest.raises(UsageError, match="must be above 0s and at most 36500d"):
        duration_in(text)


@pytest.mark.parametrize("text", ["", "2x", "-1h", "1e4s", "1h "])
def test_another_text_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError, match="is no duration: write 90s, 30m, 2h or 1d12h"):
        duration_in(text)
