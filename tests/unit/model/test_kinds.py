"""Kinds: how bytes become objects and back."""

from typing import Any

import msgspec
import pytest

from natsctl.errors import InvalidObjectError, UsageError
from natsctl.model.kinds import Kind, kv
from natsctl.model.objects import Metadata, Object


class AppSpec(msgspec.Struct, frozen=True):
    text: str
    size: int = 1


class App(Object, frozen=True):
    spec: AppSpec


class Note(msgspec.Struct, frozen=True):
    text: str


class Pair(msgspec.Struct, frozen=True, array_like=True):
    left: int
    right: int


class Grumpy(Object, frozen=True):
    spec: AppSpec

    def __post_init__(self) -> None:
        raise RuntimeError("in a mood")


APPS = kv(App, bucket="apps")
NOTES = kv(Note, bucket="notes")


def document(value: bytes) -> Any:
    return msgspec.json.decode(value)


class TestNames:
    def test_a_kind_is_called_by_its_type_and_its_bucket(self) -> None:
        assert APPS.name == "App.apps"
        assert kv(dict[str, int], bucket="counts").name == "dict.counts"

    def test_no_option_is_given_by_default(self) -> None:
        given = (APPS.history, APPS.ttl_s, APPS.replicas, APPS.storage, APPS.max_value_bytes)
        assert (APPS.keys, given) == (">", (None,) * 5)
        assert APPS.create


class TestDecoding:
    def test_only_the_spec_is_needed(self) -> None:
        assert APPS.decode(b'{"spec": {"text": "hi"}}') == App(spec=AppSpec("hi"))

    def test_names_are_in_camel_case_on_the_wire(self) -> None:
        value = b'{"metadata": {"deletionTimestamp": "t"}, "spec": {"text": "hi"}}'
        assert APPS.decode(value).metadata.deletion_timestamp == "t"

    def test_unknown_fields_are_passed_over(self) -> None:
        assert APPS.decode(b'{"spec": {"text": "hi", "x": 1}, "y": 2}').spec == AppSpec("hi")

    @pytest.mark.parametrize(
        ("value", "where"),
        [
            (b"", "not a valid App"),
            (b"{}", "missing required field `spec`"),
            (b'{"spec": {"text": 1}}', r"\$\.spec\.text"),
            (b'{"spec": {"text": "hi"}, "metadata": {"labels": 1}}', r"\$\.metadata\.labels"),
            (b"\xff", "not a valid App"),
        ],
    )
    def test_what_is_invalid_is_refused_with_where_it_is_wrong(
        self, value: bytes, where: str
    ) -> None:
        with pytest.raises(InvalidObjectError, match=where):
            APPS.decode(value)
        assert not APPS.valid(value)

    def test_a_type_that_raises_makes_an_invalid_object(self) -> None:
        with pytest.raises(InvalidObjectError, match="in a mood"):
            kv(Grumpy, bucket="b").decode(b'{"spec": {"text": "hi"}}')

    def test_what_is_nested_too_deeply_is_invalid(self) -> None:
        nested = b'{"spec": {"text": "hi"}, "status": ' + b'{"a":' * 100_000
        assert not APPS.valid(nested)

    def test_bytes_are_taken_as_they_are(self) -> None:
        assert kv(bytes, bucket="b").decode(b"\xff\x00") == b"\xff\x00"


class TestPlainKinds:
    """A type that is no Object: the whole value is the spec."""

    @pytest.mark.parametrize("of", [dict, dict[str, int], Note, bytes, str, list[int]])
    def test_they_have_no_metadata_and_say_so(self, of: type) -> None:
        kind: Kind[Any] = kv(of, bucket="b")
        assert kind.plain
        for ask in (kind.require_metadata, lambda: kind.metadata(b"{}")):
            with pytest.raises(
                UsageError, match=r"no labels, finalizers or status.*natsctl\.Object"
            ):
                ask()

    def test_what_they_decode_is_the_whole_value(self) -> None:
        assert NOTES.decode(b'{"text": "hi"}') == Note("hi")
        assert kv(dict[str, int], bucket="b").decode(b'{"a": 1}') == {"a": 1}

    def test_they_differ_where_their_bytes_do(self) -> None:
        assert NOTES.differs(b'{"text": "a"}', b'{"text": "b"}')
        assert not NOTES.differs(b'{"text": "a"}', b'{"text": "a"}')

    def test_fields_that_the_type_does_not_know_stay(self) -> None:
        assert document(NOTES.encode(b'{"text": "a", "x": 1}', Note("b"))) == {"text": "b", "x": 1}

    @pytest.mark.parametrize("current", [None, b"", b"no JSON", b"[1]"])
    def test_what_is_no_document_is_replaced(self, current: bytes | None) -> None:
        assert document(NOTES.encode(current, Note("b"))) == {"text": "b"}

    def test_they_are_encoded_as_they_are(self) -> None:
        assert kv(bytes, bucket="b").encode(b"old", b"\xff") == b"\xff"
        assert document(kv(dict, bucket="b").encode(b'{"x": 1}', {"y": 2})) == {"y": 2}
        assert document(kv(Pair, bucket="b").encode(b"[1,2]", Pair(3, 4))) == [3, 4]


class TestEncoding:
    def test_a_new_object_is_stamped(self) -> None:
        encoded = document(APPS.encode(None, App(spec=AppSpec("hi"))))
        assert encoded["spec"] == {"text": "hi", "size": 1}
        assert encoded["metadata"]["generation"] == 1
        assert "status" not in encoded

    def test_only_what_the_object_says_changes(self) -> None:
        current = b'{"metadata":{"uid":"u","generation":1,"x":1},"spec":{"text":"a","y":2},"z":3}'
        encoded = document(APPS.encode(current, App(spec=AppSpec("b"))))
        assert encoded == {
            "metadata": {"uid": "u", "generation": 2, "x": 1},
            "spec": {"text": "b", "size": 1, "y": 2},
            "z": 3,
        }

    def test_labels_and_annotations_are_added_to_those_there_are(self) -> None:
        current = b'{"metadata": {"labels": {"a": "1"}}, "spec": {"text": "a"}}'
        app = App(metadata=Metadata(labels={"b": "2"}, annotations={"c": "3"}), spec=AppSpec("a"))
        metadata = document(APPS.encode(current, app))["metadata"]
        assert metadata["labels"] == {"a": "1", "b": "2"}
        assert metadata["annotations"] == {"c": "3"}

    def test_what_was_encoded_is_decoded_and_encoded_again_without_a_change(self) -> None:
        app = App(spec=AppSpec("hi"))
        encoded = APPS.encode(None, app)
        assert APPS.decode(encoded).spec == app.spec
        assert APPS.encode(encoded, app) == encoded

    @pytest.mark.parametrize("current", [b"", b"no JSON", b"[1]"])
    def test_what_is_no_document_is_replaced(self, current: bytes) -> None:
        assert (
            document(APPS.encode(current, App(spec=AppSpec("hi"))))["metadata"]["generation"] == 1
        )

    def test_an_object_of_another_sort_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"App\.apps holds App, not Note"):
            APPS.encode(None, Note("hi"))  # type: ignore[arg-type]  # that is what is tested


class TestMetadata:
    def test_it_is_read_without_the_rest(self) -> None:
        value = b'{"metadata": {"labels": {"a": "b"}}, "spec": "anything"}'
        assert APPS.metadata(value) == Metadata(labels={"a": "b"})

    def test_of_an_object_it_is_its_own(self) -> None:
        assert APPS.metadata_of(App(spec=AppSpec("hi"))) == Metadata()

    def test_where_it_is_odd_that_is_said(self) -> None:
        with pytest.raises(InvalidObjectError, match="invalid metadata"):
            APPS.metadata(b'{"metadata": 1}')
