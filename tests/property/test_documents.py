"""Documents: patches, finalizers, exact numbers, readiness."""

import copy
import math
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from natsctl import Metadata, Object, kv
from natsctl.core.compare_and_set import with_finalizer
from natsctl.errors import InvalidObjectError
from natsctl.model import documents, exact_json
from natsctl.model.documents import Document, same
from natsctl.model.readiness import ready, reason
from natsctl.model.store import Stored
from natsctl.model.times import time_in, time_text
from tests.support.stores.documents import merge_patch

# ---- property tests of documents: writes in any order keep the fields of other writers

SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=3)
VALUES: st.SearchStrategy[Any] = SCALARS | st.floats(allow_nan=False, allow_infinity=False)
for _ in range(2):  # levels of nesting, which are drawn much faster than with `st.recursive`
    VALUES |= st.lists(VALUES, max_size=3) | st.dictionaries(
        st.text(max_size=3), VALUES, max_size=3
    )
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)
UNKNOWN = st.dictionaries(st.sampled_from(["x", "y", "z"]), VALUES, max_size=3)


class Part(msgspec.Struct, frozen=True):
    size: int = 1
    tags: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    text: str = ""
    main_part: Part | None = None
    parts: dict[str, Part] = {}
    list: tuple[Part, ...] = ()
    set: frozenset[str] = frozenset()


class App(Object, frozen=True):
    spec: Spec = Spec()


APPS = kv(App, bucket="apps")
TEXTS = st.text(max_size=3)
PARTS = st.builds(Part, st.integers(0, 3), st.lists(TEXTS, max_size=2).map(tuple))
SPECS = st.builds(
    Spec,
    TEXTS,
    st.none() | PARTS,
    st.dictionaries(st.sampled_from("pq"), PARTS, max_size=2),
    st.lists(PARTS, max_size=2).map(tuple),
    st.frozensets(TEXTS, max_size=3),
)
LABELS = st.dictionaries(st.sampled_from("ab"), TEXTS, max_size=2)
APP = st.builds(
    lambda spec, labels, notes: App(
        spec=spec, metadata=Metadata(labels=labels, annotations=notes), status={"mine": 1}
    ),
    SPECS,
    LABELS,
    LABELS,
)


@st.composite
def foreign(draw: st.DrawFn) -> Document:
    """Draw a valid document of another program, with fields that the type does not have."""
    part = {**draw(UNKNOWN), "size": 1}
    spec = {**draw(UNKNOWN), "text": "hi", "mainPart": part, "parts": {"p": part}}
    metadata = {**draw(UNKNOWN), **draw(st.sampled_from([{}, {"labels": {"a": "1"}}]))}
    return {**draw(UNKNOWN), "metadata": metadata, "spec": spec, "status": draw(UNKNOWN)}


class Write:
    """The kinds of writes, each applied to a stored value."""

    @staticmethod
    def put(value: bytes, app: App) -> bytes:
        return APPS.encode(value, app)

    @staticmethod
    def status(value: bytes, patch: Document) -> bytes:
        return documents.render(documents.with_status(documents.parse(value), patch))

    @staticmethod
    def add_finalizer(value: bytes, name: str) -> bytes:
        return with_finalizer(Stored("a", 1, value), name)

    @staticmethod
    def remove_finalizer(value: bytes, name: str) -> bytes:
        document = documents.parse(value)
        remaining = tuple(
            finalizer for finalizer in documents.finalizers_of(document) if finalizer != name
        )
        return documents.render(documents.with_finalizers(document, remaining))

    @staticmethod
    def mark(value: bytes, _nothing: None) -> bytes:
        return documents.render(documents.marked_deleted(documents.parse(value)))

    @staticmethod
    def label(value: bytes, labels: dict[str, str]) -> bytes:
        return documents.render(documents.with_labels(documents.parse(value), labels, labels))


FINALIZERS = st.sampled_from(["one", "two"])
STATUSES = st.dictionaries(st.sampled_from("st"), VALUES, max_size=2)
WRITES = st.lists(
    st.one_of(
        st.tuples(st.just(Write.put), APP),
        st.tuples(st.just(Write.status), STATUSES),
        st.tuples(st.just(Write.add_finalizer), FINALIZERS),
        st.tuples(st.just(Write.remove_finalizer), FINALIZERS),
        st.tuples(st.just(Write.mark), st.none()),
        st.tuples(st.just(Write.label), LABELS),
    ),
    max_size=6,
)


def unknown(document: Any) -> Document:
    return {name: document[name] for name in ("x", "y", "z") if name in document}


def read_again(document: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(document))


@given(foreign(), WRITES)
def test_every_write_keeps_unknown_fields(before: Document, writes: list[Any]) -> None:
    before = read_again(before)
    value = documents.render(before)
    for write, argument in writes:
        value = write(value, argument)
    after: Any = documents.parse(value)
    assert unknown(after) == unknown(before)
    for name in ("metadata", "spec", "status"):
        assert unknown(after[name]) == unknown(before[name])


@given(foreign(), APP)
def test_a_put_keeps_unknown_fields_of_nested_structs(before: Document, app: App) -> None:
    old: Any = read_again(before)
    new: Any = documents.parse(APPS.encode(documents.render(before), app))
    if app.spec.main_part is not None:
        assert unknown(new["spec"]["mainPart"]) == unknown(old["spec"]["mainPart"])
    for name in app.spec.parts.keys() & {"p"}:
        assert unknown(new["spec"]["parts"][name]) == unknown(old["spec"]["parts"][name])


@given(foreign(), APP)
def test_a_put_object_is_read_and_a_second_put_changes_nothing(before: Document, app: App) -> None:
    value = APPS.encode(documents.render(before), app)
    assert APPS.decode(value).spec == app.spec
    assert APPS.encode(value, app) == value


@given(foreign(), APP, APP)
def test_the_generation_grows_if_and_only_if_the_spec_changes(
    before: Document, app: App, changed_app: App
) -> None:
    first = APPS.encode(documents.render(before), app)
    second = APPS.encode(first, changed_app)
    growth = APPS.metadata(second).generation - APPS.metadata(first).generation
    assert growth == (app.spec != changed_app.spec)


@given(foreign(), STATUSES, FINALIZERS)
def test_status_and_finalizers_do_not_change_the_desired_state(
    before: Document, status: Document, name: str
) -> None:
    value = documents.render(before)
    assert not documents.desire_differs(value, Write.status(value, status))
    assert not documents.desire_differs(value, Write.add_finalizer(value, name))
    assert documents.desire_differs(value, Write.mark(value, None))


@given(DOCUMENTS, DOCUMENTS)
def test_a_merge_patch_is_that_of_another_program_and_changes_no_argument(
    document: Document, patch: Document
) -> None:
    before = copy.deepcopy((document, patch))
    merged = documents.merge_patch(document, patch)
    assert merged == merge_patch(document, patch)
    assert documents.merge_patch(merged, patch) == merged
    assert (document, patch) == before


@given(wanted=VALUES, stored=VALUES, more=st.dictionaries(st.sampled_from("abcxyz"), VALUES))
def test_a_document_agrees_if_its_view_is_the_wanted_one(
    wanted: Any, stored: Any, more: dict[str, Any]
) -> None:
    pairs = [(wanted, stored), ({"a": wanted}, {**more, "a": stored}), ({"a": wanted}, more)]
    pairs += [(wanted, wanted), ({"a": wanted}, {**more, "a": wanted})]
    for wanted_part, stored_part in pairs:
        assert documents.agrees(wanted_part, stored_part) == (
            documents.view(wanted_part, stored_part) == wanted_part
        )


# ---- documents: the fields that each kind of write changes and the fields that it keeps


class Port(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    name: str = ""


class SiteSpec(msgspec.Struct, frozen=True):
    main: Port | None = None
    ports: tuple[Port, ...] = ()
    later: int | msgspec.UnsetType = msgspec.UNSET


class Circle(msgspec.Struct, frozen=True, tag="circle"):
    radius: int


class Square(msgspec.Struct, frozen=True, tag="square"):
    side: int


class Shape(msgspec.Struct, frozen=True):
    shape: Circle | Square


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b'"text"', b"null", b"7", b"\xff", b'{"a": \xff}']
)
def test_parse_refuses_values_that_are_not_json_objects(value: bytes) -> None:
    with pytest.raises(InvalidObjectError, match="not a JSON object"):
        documents.parse(value)


def test_parse_refuses_a_document_nested_too_deeply() -> None:
    with pytest.raises(InvalidObjectError):
        documents.parse(b'{"a":' * 100_000)


def test_missing_or_invalid_metadata_is_empty() -> None:
    assert documents.metadata_of({}) == documents.metadata_of({"metadata": "x"}) == {}


PORT = {"number": 3, "name": ""}
CIRCLE: Document = {"type": "circle", "radius": 1, "unknown": 2}


@pytest.mark.parametrize(
    ("name", "current", "wanted", "result"),
    [
        ("ports", [{"number": 1, "unknown": 2}], SiteSpec(ports=(Port(number=3),)), [PORT]),
        ("main", {"number": 1}, SiteSpec(), None),
        ("later", 2, SiteSpec(later=1), 1),
        ("later", 1, SiteSpec(), msgspec.UNSET),
        ("shape", CIRCLE, Shape(Circle(3)), {"type": "circle", "radius": 3, "unknown": 2}),
        ("shape", CIRCLE, Shape(Square(4)), {"type": "square", "side": 4}),
    ],
    ids=["list", "none", "set", "unset", "same variant", "another variant"],
)
def test_a_field_that_is_no_struct_of_the_same_type_is_replaced_as_a_whole(
    name: str, current: object, wanted: msgspec.Struct, result: object
) -> None:
    assert documents.overlay({name: current}, wanted).get(name, msgspec.UNSET) == result


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
    document: Document, patch: Document, merged: Document
) -> None:
    assert documents.merge_patch(document, patch) == merged


def test_a_number_that_becomes_a_boolean_is_a_difference() -> None:
    assert documents.patch_between({"a": 1, "b": 1}, {"a": True, "b": 1.0}) == {"a": True}


def first(new: Document) -> Document:
    return documents.stamp(None, new)


def test_a_new_object_gets_a_uid_of_its_own_and_its_first_generation() -> None:
    one, two = (documents.metadata_of(first({"spec": {}})) for _ in range(2))
    assert one["generation"] == two["generation"] == 1
    assert one["uid"] != two["uid"]
    assert len(str(one["uid"])) == 36


def test_a_missing_generation_restarts_at_one() -> None:
    stamped = documents.stamp({"spec": {"text": "1"}}, {"spec": {"text": "2"}})
    assert documents.metadata_of(stamped)["generation"] == 1


def test_bookkeeping_fields_given_by_the_writer_are_ignored() -> None:
    created = first({"spec": {}})
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
    assert set(documents.metadata_of(first(forged))) == {"uid", "generation"}


def test_empty_bookkeeping_fields_cause_no_write() -> None:
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


def test_marked_deleted_sets_the_timestamp_and_increments_the_generation() -> None:
    marked = documents.metadata_of(documents.marked_deleted({"metadata": {"generation": 4}}))
    assert marked["generation"] == 5
    deleted_at = marked["deletionTimestamp"]
    assert isinstance(deleted_at, str)
    assert abs((datetime.now(UTC) - datetime.fromisoformat(deleted_at)).total_seconds()) < 60


DEEP = b'{"spec": ' + b"[" * 400 + b"1" + b"]" * 400 + b"}"
DELETED = b'{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": %b}}'


@pytest.mark.parametrize(
    ("before", "after", "differ"),
    [
        (b'{"spec": 1}', b'{"spec": true}', True),
        (b'{"spec": false}', b'{"spec": 0.0}', True),
        (b'{"spec": [{"a": 1}]}', b'{"spec": [{"a": true}]}', True),
        (b'{"spec": 1}', b'{"spec": 1.0}', False),
        (DEEP, DEEP, False),
    ],
    ids=["one", "zero", "nested", "notation", "deep"],
)
def test_the_desired_state_differs(before: bytes, after: bytes, differ: bool) -> None:  # noqa: FBT001 - a test parameter
    assert documents.desire_differs(before, after) == differ
    stamped = documents.stamp(documents.parse(before), documents.parse(after))
    assert documents.metadata_of(stamped)["generation"] == int(differ)


def test_a_finalizer_of_an_object_marked_deleted_is_a_difference() -> None:
    assert documents.desire_differs(DELETED % b'["a", "b"]', DELETED % b'["a"]')


def test_nan_becomes_null() -> None:
    assert documents.plain(math.nan) is None


# ---- JSON numbers that a float cannot represent are read and written exactly

NUMBERS = [
    b"12345678901234567890.5",
    b"0.1000000000000000055511151231257827",
    b"1e400",
    b"-1E-400",
    b"123456789012345678901234567890",
    b"1.0",
    b"1",
    b"1.50",
    b"1e5",
    b"0.1",
    b"-0.0",
    b"1e99999999999999999999",
]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_written_as_it_was_read(text: bytes) -> None:
    value = b'{"deep":[' + text + b"]}"
    assert exact_json.encode(exact_json.decode(value)) == value


@pytest.mark.parametrize(
    ("encoded", "other_encoded", "equal"),
    [
        (b"12345678901234567890.5", b"12345678901234567890.6", False),
        (b"12345678901234567890.5", b"12345678901234567000.0", False),
        (b"1e400", b"1e401", False),
        (b"1e400", b"10e399", True),
        (b"0.10", b"0.1", True),
        (b"1E2", b"100", True),
        (b"1.0", b"1", True),
        (b"1e99999999999999999999", b"1", False),
    ],
)
def test_numbers_are_compared_exactly(encoded: bytes, other_encoded: bytes, equal: bool) -> None:  # noqa: FBT001 - a test parameter
    number, other_number = exact_json.decode(encoded), exact_json.decode(other_encoded)
    assert (number == other_number) is equal
    assert (other_number == number) is equal
    assert same([number], [other_number]) is equal
    if equal:
        assert hash(number) == hash(other_number)


def test_an_exact_number_survives_a_copy() -> None:
    number = exact_json.decode(b"12345678901234567890.5")
    assert exact_json.encode(pickle.loads(pickle.dumps(number))) == b"12345678901234567890.5"


def test_a_value_that_is_not_json_is_refused() -> None:
    with pytest.raises(TypeError, match="objects of type object is unsupported"):
        exact_json.encode({"a": object()})


# ---- readiness of an object and its reason, read from its status


def conditions(*items: object) -> Document:
    return {"status": {"conditions": list(items)}}


READY = {"type": "Ready", "status": "False", "reason": "Creating"}
UNSYNCED = {"type": "Synced", "status": "False", "reason": "ReconcileError"}
AVAILABLE = {"type": "Available", "status": "True", "reason": "MinimumReplicasAvailable"}


@pytest.mark.parametrize(
    ("document", "expected_status", "expected_reason"),
    [
        (conditions(READY), "False", "Creating"),
        (conditions(AVAILABLE), "True", "MinimumReplicasAvailable"),
        (conditions(AVAILABLE, READY), "False", "Creating"),
        (conditions({"type": "Ready", "status": "Unknown", "reason": 5}), "Unknown", ""),
        (conditions({"type": "Progressing", "status": "True", "reason": "x"}), "-", ""),
        (conditions("odd", READY), "False", "Creating"),
        (conditions(UNSYNCED), "False", "ReconcileError"),
        (conditions(UNSYNCED, {"type": "Ready", "status": "True"}), "True", ""),
        (conditions({"type": "Synced", "status": "True"}), "-", ""),
        ({"status": {"conditions": {"type": "Ready"}}}, "-", ""),
        ({"status": {"ready": True, "conditions": [READY]}}, "True", "Creating"),
        ({}, "-", ""),
        (None, "-", ""),
    ],
)
def test_readiness_comes_from_the_conditions(
    document: Document | None, expected_status: str, expected_reason: str
) -> None:
    assert (ready(document), reason(document)) == (expected_status, expected_reason)


# ---- times as texts

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2030-01-01T12:00:00Z", NOW),
        ("2030-01-01T12:00:00+00:00", NOW),
        ("2030-01-01T12:00:00", NOW),
        ("2030-01-01T13:00:00.5+01:00", NOW + timedelta(seconds=0.5)),
        ("now", None),
        ("", None),
    ],
)
def test_timestamps_are_parsed_in_common_formats(text: str, time: datetime | None) -> None:
    assert time_in(text) == time


def test_a_time_is_written_in_utc_with_the_precision_that_is_named() -> None:
    time = NOW + timedelta(milliseconds=250)
    assert time_text(time) == "2030-01-01T12:00:00Z"
    assert time_text(time, timespec="milliseconds") == "2030-01-01T12:00:00.250Z"
