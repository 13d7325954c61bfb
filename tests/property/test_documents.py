"""Property tests of documents: writes in any order keep the fields of other writers."""

import copy
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from natsctl import Metadata, Object, kv
from natsctl.core.compare_and_set import with_finalizer
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.store import Stored

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
def test_a_merge_patch_changes_only_the_fields_that_it_names(
    document: Document, patch: Document
) -> None:
    merged = documents.merge_patch(document, patch)
    for name in merged.keys() | document.keys() | patch.keys():
        if name not in patch:
            assert merged[name] == document[name]
        elif patch[name] is None:
            assert name not in merged
        elif not isinstance(patch[name], dict):
            assert merged[name] == patch[name]


@given(DOCUMENTS, DOCUMENTS)
def test_a_merge_patch_applied_twice_is_applied_once(document: Document, patch: Document) -> None:
    once = documents.merge_patch(document, patch)
    assert documents.merge_patch(once, patch) == once


@given(DOCUMENTS)
def test_an_empty_merge_patch_changes_nothing(document: Document) -> None:
    assert documents.merge_patch(document, {}) == document


@given(DOCUMENTS, DOCUMENTS)
def test_a_merge_patch_does_not_change_its_arguments(document: Document, patch: Document) -> None:
    before = copy.deepcopy((document, patch))
    documents.merge_patch(document, patch)
    assert (document, patch) == before


@given(DOCUMENTS, DOCUMENTS)
def test_every_difference_can_be_written_as_a_merge_patch(
    current_document: Document, wanted_document: Document
) -> None:
    def without_null(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without_null(v) for k, v in value.items() if v is not None}
        return value

    def patch(old: Any, new: Any) -> Any:
        if not (isinstance(old, dict) and isinstance(new, dict)):
            return new
        removed = dict.fromkeys(old.keys() - new.keys())
        return {**removed, **{k: patch(old.get(k), v) for k, v in new.items() if old.get(k) != v}}

    current, wanted = without_null(current_document), without_null(wanted_document)
    assert documents.merge_patch(current, patch(current, wanted)) == wanted


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
