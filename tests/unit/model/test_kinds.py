"""Kinds: names, decoding and encoding of objects, and parts of a bucket."""

from typing import Any

import msgspec
import pytest

from natsctl import Kind, Object, kv
from natsctl.errors import InvalidObjectError, UsageError


class AppSpec(msgspec.Struct, frozen=True):
    text: str
    size: int = 1


class App(Object, frozen=True):
    spec: AppSpec


class Note(msgspec.Struct, frozen=True):
    text: str


class Raising(Object, frozen=True):
    spec: AppSpec

    def __post_init__(self) -> None:
        raise RuntimeError("refused by the type")


APPS = kv(App, bucket="apps")
NOTES = kv(Note, bucket="notes")


def document(value: bytes) -> Any:
    return msgspec.json.decode(value)


def test_a_kind_is_named_after_its_type_and_its_bucket() -> None:
    assert APPS.name == "App.apps"
    assert kv(dict[str, int], bucket="counts").name == "dict.counts"


class TestDecoding:
    def test_only_the_spec_is_required_and_unknown_fields_are_ignored(self) -> None:
        assert APPS.decode(b'{"spec": {"text": "hi", "x": 1}, "y": 2}') == App(spec=AppSpec("hi"))
        marked = b'{"metadata": {"deletionTimestamp": "t"}, "spec": {"text": "hi"}}'
        assert APPS.decode(marked).metadata.deletion_timestamp == "t"

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (b"", "not a valid App"),
            (b"{}", "missing required field `spec`"),
            (b'{"spec": {"text": 1}}', r"\$\.spec\.text"),
            (b'{"spec": {"text": "hi"}, "metadata": {"labels": 1}}', r"\$\.metadata\.labels"),
            (b"\xff", "not a valid App"),
            (b'{"spec": {"text": "hi"}, "status": ' + b'{"a":' * 100_000, "not a valid App"),
        ],
        ids=lambda value: value[:40],
    )
    def test_an_invalid_object_is_refused_with_the_path_of_the_mistake(
        self, value: bytes, path: str
    ) -> None:
        with pytest.raises(InvalidObjectError, match=path):
            APPS.decode(value)
        assert not APPS.valid(value)

    def test_an_exception_in_the_type_makes_the_object_invalid(self) -> None:
        with pytest.raises(InvalidObjectError, match="refused by the type"):
            kv(Raising, bucket="b").decode(b'{"spec": {"text": "hi"}}')


class TestPlainKinds:
    """A type that is not an Object: the whole value is the spec."""

    @pytest.mark.parametrize(
        ("type_", "value", "decoded"),
        [
            (dict, b'{"a": 1}', {"a": 1}),
            (dict[str, int], b'{"a": 1}', {"a": 1}),
            (Note, b'{"text": "hi"}', Note("hi")),
            (bytes, b"\xff\x00", b"\xff\x00"),
            (str, b'"hi"', "hi"),
            (list[int], b"[1]", [1]),
        ],
    )
    def test_a_plain_kind_decodes_the_whole_value_and_has_no_metadata(
        self, type_: type, value: bytes, decoded: object
    ) -> None:
        kind: Kind[Any] = kv(type_, bucket="b")
        assert kind.plain
        assert kind.decode(value) == decoded
        refused = r"no labels, finalizers or status.*natsctl\.Object"
        for call in (kind.require_metadata, lambda: kind.metadata(b"{}")):
            with pytest.raises(UsageError, match=refused):
                call()

    @pytest.mark.parametrize("current", [None, b"", b"no JSON", b"[1]"])
    def test_a_current_value_that_is_no_document_is_replaced(self, current: bytes | None) -> None:
        assert document(NOTES.encode(current, Note("b"))) == {"text": "b"}


class TestEncoding:
    @pytest.mark.parametrize("current", [None, b"", b"no JSON", b"[1]"])
    def test_a_new_object_is_stamped(self, current: bytes | None) -> None:
        encoded = document(APPS.encode(current, App(spec=AppSpec("hi"))))
        assert encoded["spec"] == {"text": "hi", "size": 1}
        assert encoded["metadata"]["generation"] == 1
        assert "status" not in encoded

    @pytest.mark.parametrize(
        ("value", "generation"),
        [
            (b'{"metadata":{"labels":{"a":"b"},"generation":7},"spec":{"generation":1}}', 7),
            (b'{"metadata":{"uid":"u"},"spec":{}}', 0),
            (b'{"spec":{}}', 0),
            (b'{"metadata":{"generation":"7"}}', 0),
            (b"no JSON", 0),
        ],
    )
    def test_the_generation_of_a_value_is_that_of_its_metadata(
        self, value: bytes, generation: int
    ) -> None:
        assert APPS.generation(value) == generation

    def test_an_object_of_another_type_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"App\.apps holds App, not Note"):
            APPS.encode(None, Note("hi"))  # type: ignore[arg-type]  # another type


@pytest.mark.parametrize(
    "keys", [[], [""], ["a b"], ["eu.>", "eu.*"], ["*.a", "eu.>"], ["a", "a"], ""]
)
def test_patterns_that_share_a_key_are_refused(keys: list[str]) -> None:
    with pytest.raises(UsageError, match="keys="):
        kv(bytes, bucket="notes", keys=keys)


@pytest.mark.parametrize("keys", [["eu.>", "us.>"], ["eu", "eu.>"], ["*", "eu.*"], "a b"])
def test_patterns_that_share_no_key_are_several_parts(keys: list[str]) -> None:
    patterns = keys.split() if isinstance(keys, str) else keys
    kind = kv(bytes, bucket="notes", keys=keys)
    assert [kind.holds(pattern.translate({42: "x", 62: "x"})) for pattern in patterns] == [True] * 2
    assert not kind.holds("other.x.x.x")
