"""Documents: the fields that each kind of write changes and the fields that it keeps."""

import copy
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


class Sparse(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str = ""
    size: int = 1


class Whole(msgspec.Struct, frozen=True):
    spec: Sparse


def round_trip(document: Document) -> Document:
    return documents.parse(documents.render(document))


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

    def test_a_document_survives_a_round_trip(self) -> None:
        document: Document = {"spec": {"text": "Grüße", "n": [1, 2.5, None, True]}}
        assert round_trip(document) == document

    def test_missing_or_invalid_metadata_is_empty(self) -> None:
        assert documents.metadata_of({}) == documents.metadata_of({"metadata": "x"}) == {}


class TestOverlay:
    def test_known_fields_are_set_under_their_json_names(self) -> None:
        result = documents.overlay({}, Spec(text="ho", max_size=2))
        assert (result["text"], result["maxSize"]) == ("ho", 2)

    def test_unknown_fields_stay(self) -> None:
        assert documents.overlay({"unknown": [1]}, Spec())["unknown"] == [1]

    def test_unknown_fields_of_nested_structs_stay(self) -> None:
        result = documents.overlay({"main": {"number": 1, "unknown": 2}}, Spec(main=Port(number=3)))
        assert result["main"] == {"number": 3, "name": "", "unknown": 2}

    def test_unknown_fields_of_structs_in_a_dict_stay(self) -> None:
        current: Document = {"named": {"a": {"number": 1, "unknown": 2}, "b": {"number": 9}}}
        result = documents.overlay(current, Spec(named={"a": Port(number=3)}))
        assert result["named"] == {"a": {"number": 3, "name": "", "unknown": 2}}

    def test_lists_are_replaced_as_a_whole(self) -> None:
        current: Document = {"ports": [{"number": 1, "unknown": 2}]}
        result = documents.overlay(current, Spec(ports=(Port(number=3),)))
        assert result["ports"] == [{"number": 3, "name": ""}]

    def test_a_struct_replaces_a_value_that_is_no_object(self) -> None:
        for current in (None, "text", [1]):
            result = documents.overlay({"main": current}, Spec(main=Port(number=3)))
            assert result["main"] == {"number": 3, "name": ""}

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

    @pytest.mark.parametrize(
        "spec",
        [
            Spec(),
            Spec(ports=(Port(number=1), Port(number=2, name="x"))),
            Spec(named={"a": Port(number=1)}, main=Port(number=2)),
            Spec(tags=frozenset({"c", "a", "b"}), counts={2: 1, 1: 2}),
            Spec(color=Color.RED, since=datetime(2026, 1, 1, tzinfo=UTC), later=3),
            Shape(Circle(1)),
            Whole(Sparse()),
            Whole(Sparse(text="x", size=2)),
        ],
    )
    def test_an_overlay_over_its_own_result_changes_nothing(self, spec: msgspec.Struct) -> None:
        stored = round_trip(documents.overlay({}, spec))
        assert documents.overlay(stored, spec) == stored
        assert msgspec.json.decode(documents.render(stored), type=type(spec)) == spec

    def test_the_given_document_is_not_modified(self) -> None:
        current: Document = {"main": {"number": 1}, "unknown": {"a": 1}}
        before = copy.deepcopy(current)
        documents.overlay(current, Spec(main=Port(number=2)))
        assert current == before


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

    def test_a_changed_spec_increments_the_generation(self) -> None:
        created = self.first({"spec": {"text": "1"}})
        updated = documents.stamp(created, {**created, "spec": {"text": "2"}})
        assert documents.metadata_of(updated)["generation"] == 2
        assert documents.metadata_of(updated)["uid"] == documents.metadata_of(created)["uid"]

    def test_the_same_spec_changes_nothing(self) -> None:
        created = self.first({"spec": {"text": "1"}, "metadata": {"labels": {"a": "b"}}})
        assert documents.stamp(created, created) == created

    def test_a_changed_label_keeps_the_generation(self) -> None:
        created = self.first({"spec": {}})
        updated = documents.stamp(created, documents.with_labels(created, {"a": "b"}, {}))
        assert documents.metadata_of(updated)["generation"] == 1
        assert documents.metadata_of(updated)["labels"] == {"a": "b"}

    def test_a_change_of_an_unknown_field_beside_the_spec_increments_the_generation(self) -> None:
        created = self.first({"spec": {}, "data": 1})
        updated = documents.stamp(created, {**created, "data": 2})
        assert documents.metadata_of(updated)["generation"] == 2

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

    def test_finalizers_and_the_deletion_timestamp_stay(self) -> None:
        held = documents.with_finalizers(self.first({"spec": {}}), ("a", "b"))
        marked = documents.marked_deleted(held)
        metadata = documents.metadata_of(documents.stamp(marked, {"spec": {"text": "new"}}))
        assert metadata["finalizers"] == ["a", "b"]
        assert metadata["deletionTimestamp"] == documents.metadata_of(marked)["deletionTimestamp"]

    def test_the_status_is_kept_and_not_written(self) -> None:
        current = documents.with_status(self.first({"spec": {}}), {"ready": True})
        stamped = documents.stamp(current, {"spec": {"text": "new"}, "status": {"ready": False}})
        assert stamped["status"] == {"ready": True}
        assert "status" not in self.first({"spec": {}, "status": {"ready": True}})

    @pytest.mark.parametrize("empty", [0, "", [], {}, None, False])
    def test_empty_unknown_metadata_stays(self, empty: object) -> None:
        created = self.first({"spec": {}, "metadata": {"unknown": empty}})
        assert documents.metadata_of(created)["unknown"] == empty

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


class TestLabels:
    def test_labels_and_annotations_are_added_to_existing_ones(self) -> None:
        current: Document = {"metadata": {"labels": {"a": "1", "b": "2"}, "x": 1}}
        labelled = documents.with_labels(current, {"b": "3"}, {"c": "4"})
        assert labelled["metadata"] == {
            "labels": {"a": "1", "b": "3"},
            "annotations": {"c": "4"},
            "x": 1,
        }


class TestStatus:
    def test_a_status_is_merged_into_the_existing_one(self) -> None:
        current: Document = {"spec": 1, "status": {"a": 1, "b": {"c": 1, "d": 2}}}
        merged = documents.with_status(current, {"b": {"c": None}, "e": 3})
        assert merged == {"spec": 1, "status": {"a": 1, "b": {"d": 2}, "e": 3}}

    def test_a_status_replaces_a_value_that_is_no_object(self) -> None:
        assert documents.with_status({"status": "odd"}, {"a": 1})["status"] == {"a": 1}


class TestFinalizers:
    def test_with_finalizers_sets_exactly_the_given_ones(self) -> None:
        held = documents.with_finalizers({"metadata": {"uid": "u"}, "spec": 1}, ("a", "b"))
        assert held == {"metadata": {"uid": "u", "finalizers": ["a", "b"]}, "spec": 1}
        assert documents.finalizers_of(held) == ("a", "b")

    def test_a_document_without_finalizers_has_none(self) -> None:
        assert documents.finalizers_of({}) == ()


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
        "new",
        [
            BASE,
            {**BASE, "status": {"ready": False}},
            {name: value for name, value in BASE.items() if name != "status"},
            with_metadata(generation=4),
            with_metadata(finalizers=["a"]),
            with_metadata(finalizers=[], annotations={}, deletionTimestamp=None),
        ],
        ids=["equal", "status", "no status", "generation", "finalizer", "empty fields"],
    )
    def test_equal_documents_and_changes_of_bookkeeping_do_not_differ(self, new: Document) -> None:
        assert not self.differs(new)

    @pytest.mark.parametrize(
        "new",
        [
            {**BASE, "spec": {"text": "ho", "size": 1.5}},
            {**BASE, "spec": {"text": "hi", "size": 1.5, "unknown": 1}},
            {**BASE, "data": 1},
            with_metadata(labels={"a": "c"}),
            with_metadata(annotations={"a": "c"}),
            with_metadata(deletionTimestamp="2026-01-01T00:00:00Z"),
            with_metadata(uid="other"),
        ],
        ids=["spec", "unknown in spec", "beside spec", "label", "annotation", "deletion", "uid"],
    )
    def test_changes_of_the_desired_state_differ(self, new: Document) -> None:
        assert self.differs(new)

    def test_the_layout_of_the_json_is_no_difference(self) -> None:
        by_hand = b'{ "status": {"ready": false},\n "spec": {"size": 1.50, "text": "h\\u0069"},'
        by_hand += b' "metadata": {"labels": {"a": "b"}, "uid": "u"} }'
        assert not documents.desire_differs(documents.render(BASE), by_hand)

    @pytest.mark.parametrize(
        ("before", "after"), [(1, True), (False, 0.0), ([{"a": 1}], [{"a": True}])]
    )
    def test_booleans_and_numbers_differ(self, before: object, after: object) -> None:
        first, second = (documents.render({"spec": {"x": x}}) for x in (before, after))
        assert documents.desire_differs(first, second)
        stamped = documents.stamp(documents.parse(first), documents.parse(second))
        assert documents.metadata_of(stamped)["generation"] == 1

    @pytest.mark.parametrize("fields", [{}, {"data": 1}], ids=["spec", "beside spec"])
    def test_a_spec_of_null_and_no_spec_differ(self, fields: Document) -> None:
        null_spec, no_spec = documents.render({**fields, "spec": None}), documents.render(fields)
        assert documents.desire_differs(null_spec, no_spec)
        assert not documents.desire_differs(no_spec, no_spec)

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
    def test_plain_returns_the_value_as_json_would_decode_it(self) -> None:
        value = {"a": (1, 2), 3: frozenset({"y", "x"}), "c": Color.RED, "d": Port(number=1)}
        assert documents.plain(value) == {
            "a": [1, 2],
            "3": ["x", "y"],
            "c": "red",
            "d": {"number": 1, "name": ""},
        }

    def test_nan_becomes_null(self) -> None:
        assert documents.plain(math.nan) is None
