"""`put` and `apply` compute the new value of a key from the stored and the given one."""

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
from natsctl.model import documents
from natsctl.model.store import Stored

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
