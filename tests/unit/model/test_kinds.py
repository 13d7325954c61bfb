"""Kinds: names, decoding and encoding of objects, and parts of kinds."""

from typing import Any

import msgspec
import pytest

import natsctl
from natsctl import InvalidKeyError, Kind, KubeKind, Manifest, Object, Selector, kube, kv
from natsctl.errors import InvalidObjectError, UsageError
from natsctl.testing import MemoryStores


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


class Reading(msgspec.Struct, frozen=True):
    celsius: float


def packed(**options: object) -> natsctl.KvKind[Reading]:
    decode = msgspec.msgpack.Decoder(Reading).decode
    return natsctl.kv(Reading, bucket="readings", decoder=decode, **options)  # type: ignore[arg-type]


def test_a_decoder_reads_values_and_an_encoder_writes_them() -> None:
    kind = packed(encoder=msgspec.msgpack.encode)
    assert kind.decode(msgspec.msgpack.encode(Reading(21.5))) == Reading(21.5)
    assert kind.decode(kind.encode(b"the former value", Reading(1.0))) == Reading(1.0)


def test_an_exception_in_the_decoder_makes_the_value_invalid() -> None:
    with pytest.raises(InvalidObjectError, match="not a valid Reading"):
        packed().decode(b'{"celsius": 1}')


def test_a_kind_without_an_encoder_is_read_only() -> None:
    with pytest.raises(UsageError, match="declare an encoder"):
        packed().encode(None, Reading(1.0))


def test_a_decoder_for_an_object_is_refused() -> None:
    class Thing(natsctl.Object):  # type: ignore[misc]
        spec: int

    with pytest.raises(UsageError, match="an Object is JSON"):
        natsctl.kv(Thing, bucket="things", decoder=lambda _: Thing(spec=1))


SECRETS = kube("v1", "Secret")
LIMITS = kv(bytes, bucket="limits", history=7)


def test_a_part_has_the_same_options_and_other_keys() -> None:
    part = LIMITS.part("eu.>")
    assert (part.bucket, part.history, part.keys) == ("limits", 7, "eu.>")
    only = SECRETS.only("x/a")
    assert (only.namespace, only.object_name, SECRETS.object_name) == ("x", "a", None)
    only = kube("v1", "Node").only("n1")
    assert (only.namespace, only.object_name) == (None, "n1")


@pytest.mark.parametrize(
    ("kind", "held", "others"),
    [
        (LIMITS, ["eu.a", "us.a"], []),
        (LIMITS.part("eu.>"), ["eu.a"], ["us.a"]),
        (SECRETS.only("x/a"), ["x/a"], ["x/b", "y/a"]),
        (kube("v1", "Node").only("n1"), ["n1"], ["n2"]),
        (kube("v1", "Secret", name="a"), ["x/a", "y/a"], ["x/b"]),
    ],
)
def test_a_part_holds_its_keys_only(kind: Kind[Any], held: list[str], others: list[str]) -> None:
    assert [kind.holds(key) for key in held + others] == [True] * len(held) + [False] * len(others)


def test_a_key_outside_a_part_is_refused() -> None:
    with pytest.raises(InvalidKeyError):
        kube("v1", "Secret", namespace="x").only("y/a")
    with pytest.raises(InvalidKeyError):
        kube("v1", "Secret", name="b").only("x/a")


@pytest.mark.parametrize(
    ("kind", "metadata", "key"),
    [
        (kube("v1", "Secret"), {"name": "a", "namespace": "x"}, "x/a"),
        (kube("v1", "Secret", namespace="x"), {"name": "a"}, "x/a"),
        (kube("v1", "Node"), {"name": "n1"}, "n1"),
    ],
)
def test_the_key_of_a_manifest_has_the_namespace_of_the_manifest_or_of_its_kind(
    kind: KubeKind[Manifest], metadata: dict[str, str], key: str
) -> None:
    assert kind.key_of({"metadata": metadata}) == key


def test_selectors_of_nested_parts_are_combined() -> None:
    part = kube("v1", "Secret", labels="a=b").selected(Selector.parse("c=d"))
    assert str(part.selector) == "a=b,c=d"
    assert str(part.labelled({"e": "f"}).selector) == "a=b,c=d,e=f"


async def test_a_store_of_one_object_shows_only_that_object() -> None:
    cluster = MemoryStores().kube
    await cluster.store(SECRETS).create("x/a", b"{}")
    await cluster.store(SECRETS).create("x/b", b"{}")
    await cluster.store(SECRETS).create("y/a", b"{}")
    assert cluster.store(SECRETS.only("x/a")).keys() == ["x/a"]
    assert cluster.store(kube("v1", "Secret", name="a")).keys() == ["x/a", "y/a"]
