"""Documents: the fields that each kind of write changes and the fields that it keeps."""

import math
from datetime import UTC, datetime
from enum import Enum

import msgspec
import pytest

from natsctl.errors import InvalidObjectError
from natsctl.model import documents
from natsctl.model.documents import Document


class Port(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str = ""


class Color(Enum):
    RED = "red"


class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    text: str = "hi"
    max_size: int = 1
    main: Port | None = None
    ports: tuple[Port, ...] = ()
    named: dict[str, Port] = {}
    tags: frozenset[str] = frozenset()
    color: Color | None = None
    since: datetime | None = None
    counts: dict[int, int] = {}
    later: int | msgspec.UnsetType = msgspec.UNSET


class Circle(msgspec.Struct, frozen=True, tag="circle"):
    radius: int


class Square(msgspec.Struct, frozen=True, tag="square"):
    side: int


class Shape(msgspec.Struct, frozen=True):
    shape: Circle | Square


class TestParse:
    @pytest.mark.parametrize(
        "value", [b"", b"{", b"[]", b'"text"', b"null", b"7", b"\xff", b'{"a": \xff}']
    )
    def test_parse_refuses_values_that_are_not_json_objects(self, value: bytes) -> None:
        with pytest.raises(InvalidObjectError, match="not a JSON object"):
            documents.parse(value)

    def test_parse_refuses_a_document_nested_too_deeply(self) -> None:
        with pytest.raises(InvalidObjectError):
            documents.parse(b'{"a":' * 100_000)

    def test_missing_or_invalid_metadata_is_empty(self) -> None:
        assert documents.metadata_of({}) == documents.metadata_of({"metadata": "x"}) == {}


class TestOverlay:
    def test_lists_are_replaced_as_a_whole(self) -> None:
        current: Document = {"ports": [{"number": 1, "unknown": 2}]}
        result = documents.overlay(current, Spec(ports=(Port(number=3),)))
        assert result["ports"] == [{"number": 3, "name": ""}]

    def test_none_replaces_a_struct(self) -> None:
        assert documents.overlay({"main": {"number": 1}}, Spec())["main"] is None

    def test_an_unset_field_is_removed(self) -> None:
        assert documents.overlay({}, Spec(later=1))["later"] == 1
        assert "later" not in documents.overlay({"later": 1}, Spec())

    def test_a_union_of_the_same_variant_is_merged(self) -> None:
        current: Document = {"shape": {"type": "circle", "radius": 1, "unknown": 2}}
        result = documents.overlay(current, Shape(Circle(3)))
        assert result["shape"] == {"type": "circle", "radius": 3, "unknown": 2}

    def test_a_union_of_another_variant_is_replaced(self) -> None:
        current = documents.overlay({}, Shape(Circle(3)))
        result = documents.overlay(current, Shape(Square(4)))
        assert result["shape"] == {"type": "square", "side": 4}


class TestMergePatch:
    @pytest.mark.parametrize(
        ("document", "patch", "merged"),
        [
            # the examples of RFC 7396 whose target and patch are objects
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
            ({"a": "b"}, {"a": None}, {}),
            ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ],
    )
    def test_a_merge_patch_follows_rfc_7396(
        self, document: Document, patch: Document, merged: Document
    ) -> None:
        assert documents.merge_patch(document, patch) == merged


class TestStamp:
    """natsctl sets the bookkeeping fields and ignores values given by the writer."""

    def first(self, new: Document) -> Document:
        return documents.stamp(None, new)

    def test_a_new_object_gets_a_uid_and_its_first_generation(self) -> None:
        metadata = documents.metadata_of(self.first({"spec": {}}))
        assert metadata["generation"] == 1
        assert isinstance(metadata["uid"], str)
        assert len(metadata["uid"]) == 36

    def test_two_objects_get_different_uids(self) -> None:
        assert self.first({"spec": {}})["metadata"] != self.first({"spec": {}})["metadata"]

    def test_a_missing_generation_restarts_at_one(self) -> None:
        stamped = documents.stamp({"spec": {"text": "1"}}, {"spec": {"text": "2"}})
        assert documents.metadata_of(stamped)["generation"] == 1

    def test_bookkeeping_fields_given_by_the_writer_are_ignored(self) -> None:
        created = self.first({"spec": {}})
        forged: Document = {
            "spec": {},
            "metadata": {
                "generation": 99,
                "uid": "mine",
                "finalizers": ["mine"],
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
        }
        assert documents.stamp(created, forged) == created
        assert set(documents.metadata_of(self.first(forged))) == {"uid", "generation"}

    def test_empty_bookkeeping_fields_cause_no_write(self) -> None:
        by_hand: Document = {
            "metadata": {
                "labels": {},
                "annotations": {},
                "finalizers": [],
                "generation": 3,
                "uid": "u",
                "deletionTimestamp": None,
            },
            "spec": {},
        }
        assert documents.stamp(by_hand, by_hand) == by_hand


class TestDeletionMark:
    def test_marked_deleted_sets_the_timestamp_and_increments_the_generation(self) -> None:
        marked = documents.metadata_of(documents.marked_deleted({"metadata": {"generation": 4}}))
        assert marked["generation"] == 5
        deleted_at = marked["deletionTimestamp"]
        assert isinstance(deleted_at, str)
        assert abs((datetime.now(UTC) - datetime.fromisoformat(deleted_at)).total_seconds()) < 60


BASE: Document = {
    "metadata": {"uid": "u", "generation": 3, "labels": {"a": "b"}},
    "spec": {"text": "hi", "size": 1.5},
    "status": {"ready": True},
}


def with_metadata(**changed: object) -> Document:
    return {**BASE, "metadata": {**documents.metadata_of(BASE), **changed}}


class TestDesiredState:
    """Only a change of the desired state triggers a sync."""

    def differs(self, new: Document) -> bool:
        return documents.desire_differs(documents.render(BASE), documents.render(new))

    @pytest.mark.parametrize(
        ("before", "after"), [(1, True), (False, 0.0), ([{"a": 1}], [{"a": True}])]
    )
    def test_booleans_and_numbers_differ(self, before: object, after: object) -> None:
        first, second = (documents.render({"spec": {"x": x}}) for x in (before, after))
        assert documents.desire_differs(first, second)
        stamped = documents.stamp(documents.parse(first), documents.parse(second))
        assert documents.metadata_of(stamped)["generation"] == 1

    def test_another_notation_of_a_number_is_no_difference(self) -> None:
        assert not documents.desire_differs(b'{"spec": {"x": 1}}', b'{"spec": {"x": 1.0}}')

    def test_deeply_nested_documents_are_compared(self) -> None:
        deep = b'{"spec": ' + b"[" * 400 + b"1" + b"]" * 400 + b"}"
        assert not documents.desire_differs(deep, deep)

    def test_a_finalizer_of_an_object_marked_deleted_is_a_difference(self) -> None:
        two_finalizers = with_metadata(
            deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["a", "b"]
        )
        one_finalizer = with_metadata(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["a"])
        assert documents.desire_differs(
            documents.render(two_finalizers), documents.render(one_finalizer)
        )


class TestPlain:
    def test_nan_becomes_null(self) -> None:
        assert documents.plain(math.nan) is None
