"""What a person wants stored, and what becomes of what is stored already."""

import msgspec
import pytest

from natsctl.cli.documents.values import (
    Desired,
    Whole,
    applied,
    given,
    keeping_reserved,
    of_document,
    replaced,
)
from natsctl.cli.output.encoding import yaml_text
from natsctl.errors import UsageError
from natsctl.model import documents
from natsctl.model.store import Stored

BOOKKEEPING = {"generation": 3, "uid": "u", "finalizers": ["x/y"]}
CURRENT = {
    "metadata": {**BOOKKEEPING, "labels": {"team": "a", "tier": "edge"}},
    "spec": {"text": "hi", "replicas": 2},
    "status": {"ready": True},
    "note": "kept by nobody's type",
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


def test_reserved_annotations_stay_when_an_object_is_replaced() -> None:
    current = stored(annotated({**RESERVED, "mine": "1"}))
    new = keeping_reserved(current, Desired({"spec": {"a": 1}}))
    assert decoded(replaced(current, new))["metadata"]["annotations"] == RESERVED


def test_a_reserved_annotation_that_is_given_is_the_one_that_is_stored() -> None:
    given = annotated({"natsctl.io/external-name": "disk-2", "natsctl.io/paused": None, "b": "1"})
    current = stored(annotated(dict(RESERVED)))
    new = keeping_reserved(current, Desired(given))
    found = decoded(replaced(current, new))["metadata"]["annotations"]
    expected = {**RESERVED, "natsctl.io/external-name": "disk-2", "b": "1"}
    del expected["natsctl.io/paused"]
    assert found == expected


@pytest.mark.parametrize("data", [b'{"spec": {"a": 1}}', b"spec: {a: 1}", b"spec:\n  a: 1\n"])
def test_an_object_is_json_or_yaml(data: bytes) -> None:
    assert given(data) == Desired({"spec": {"a": 1}})


@pytest.mark.parametrize("data", [b"text", b"a: 1", b'{"a": 1}', b"[1]", b"", b"\xff", b"{{{"])
def test_what_is_no_object_is_kept_to_the_byte(data: bytes) -> None:
    assert given(data) == Whole(data)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"spec": {"text": "hi"}', "but got '<stream end>' in line 1"),
        (b"spec:\n  text: hi\n text: ho\n", "in line 3"),
        (b"---\nmetadata: {labels: {a: b}\nspec: {}\n", "in line 3"),
        (b"{'spec': \xff", "it is no text"),
    ],
)
def test_an_object_that_was_mistyped_is_not_kept_as_a_text(data: bytes, told: str) -> None:
    with pytest.raises(UsageError, match="begins as an object does") as caught:
        given(data)
    assert told in str(caught.value)
    assert str(caught.value).endswith("; --raw stores it all the same")


def test_a_yaml_file_becomes_json() -> None:
    assert given(b"a: 1", file="x.yaml") == Whole(b'{"a":1}')


def test_dates_of_yaml_become_text() -> None:
    assert given(b"spec: {from: 2026-01-31}") == Desired({"spec": {"from": "2026-01-31"}})


def test_a_document_for_apply_is_not_put() -> None:
    with pytest.raises(UsageError, match="natsctl apply"):
        given(b"{bucket: b, key: k, spec: 1}")


def test_a_put_replaces_what_was_desired_and_keeps_the_bookkeeping() -> None:
    new = Desired({"metadata": {"labels": {"team": "b"}}, "spec": {"text": "ho"}})
    assert msgspec.json.decode(replaced(stored(CURRENT), new)) == {
        "metadata": {**BOOKKEEPING, "generation": 4, "labels": {"team": "b"}},
        "spec": {"text": "ho"},
        "status": {"ready": True},
    }


def test_bookkeeping_in_what_is_put_is_not_believed() -> None:
    new = Desired(
        {"metadata": {"generation": 99, "uid": "z"}, "spec": {}, "status": {"ready": True}}
    )
    made = decoded(replaced(None, new))
    assert made["metadata"]["generation"] == 1
    assert made["metadata"]["uid"] not in {"z", ""}
    assert "status" not in made


def test_an_apply_adds_to_labels_and_keeps_other_fields() -> None:
    new = Desired({"metadata": {"labels": {"team": "b", "tier": None}}, "spec": {"text": "ho"}})
    assert msgspec.json.decode(applied(stored(CURRENT), new)) == {
        **CURRENT,
        "metadata": {**BOOKKEEPING, "generation": 4, "labels": {"team": "b"}},
        "spec": {"text": "ho"},
    }


@pytest.mark.parametrize("change", [replaced, applied])
def test_the_same_once_more_changes_nothing(change: type) -> None:
    current = stored(CURRENT)
    same = Desired({**CURRENT, "status": {"ready": False}})
    assert change(current, same) is current.value
    once = stored(change(None, Desired({"spec": {"a": 1}})))
    assert change(once, Desired({"spec": {"a": 1}})) is once.value


@pytest.mark.parametrize("change", [replaced, applied])
def test_no_value_replaces_an_object(change: type) -> None:
    with pytest.raises(UsageError, match="shop is an object"):
        change(stored(CURRENT), Whole(b"text"))


@pytest.mark.parametrize("change", [replaced, applied])
def test_an_object_may_replace_a_value(change: type) -> None:
    made = decoded(change(stored(b"text"), Desired({"spec": {"a": 1}})))
    assert made["spec"] == {"a": 1}
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize("change", [replaced, applied])
def test_json_that_says_the_same_otherwise_is_the_same(change: type) -> None:
    current = stored(b'{"a": 1,  "b": 2}')
    assert change(current, Whole(b'{"b":2,"a":1}')) is current.value
    assert change(stored(b"5"), Whole(b"5.0")) == b"5.0"


@pytest.mark.parametrize("metadata", [{"labels": {"a": 1}}, {"annotations": ["x"]}])
def test_an_object_that_no_controller_could_read_is_refused(metadata: object) -> None:
    with pytest.raises(UsageError, match="would not be valid"):
        replaced(None, Desired({"metadata": metadata, "spec": 1}))


@pytest.mark.parametrize("document", [{}, {"text": "hi"}, {"value": 1, "spec": 2, "x": 3, "y": 1}])
def test_a_document_has_a_spec_or_a_value(document: dict[str, object]) -> None:
    if "spec" in document:
        assert of_document(document) == Desired(document)
        return
    with pytest.raises(UsageError, match="no spec, and no value"):
        of_document(document)


def test_base64_that_is_none_is_told() -> None:
    with pytest.raises(UsageError, match="base64"):
        of_document({"base64": "!"})


ODD = b'{"metadata":{"annotations":{}},"spec":{"a":1},"odd":[12345678901234567890.5,1e400,1.0,1]}'


def test_numbers_that_a_float_cannot_hold_survive_every_write() -> None:
    current = Stored("shop", 1, ODD)
    kept = b'"odd":[12345678901234567890.5,1e400,1.0,1]'
    assert kept in applied(current, given(b'{"spec":{"a":2}}'))
    assert kept in replaced(None, given(ODD))
    assert kept in replaced(None, given(yaml_text(documents.parse(ODD)).encode()))


def test_a_number_that_differs_only_beyond_a_float_is_a_change() -> None:
    current = Stored("shop", 1, replaced(None, given(b'{"spec":{"a":12345678901234567890.5}}')))
    again = replaced(current, given(b"spec: {a: 12345678901234567890.5}"))
    assert again == current.value
    changed = replaced(current, given(b"spec: {a: 12345678901234567890.6}"))
    assert b"12345678901234567890.6" in changed
