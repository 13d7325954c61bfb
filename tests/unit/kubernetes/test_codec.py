"""The decoding of objects in a cluster: our type first, no `managedFields`, all other bytes."""

from typing import Any

import msgspec
import pytest

from natsctl import kube
from natsctl.errors import InvalidObjectError, StoreError
from natsctl.kubernetes.codec import (
    REMEMBERED_BYTES,
    REMEMBERED_MAX,
    ObjectDecoder,
)

MANAGED: list[Any] = [{"manager": "x", "fieldsV1": {"f:data": {}}}]
METADATA: dict[str, Any] = {"name": "web", "namespace": "shop", "resourceVersion": "17"}
DATA = {"text": 'a "managedFields":[] in a text', "é": "ü"}
TYPE = {"kind": "ConfigMap", "apiVersion": "v1"}
KIND = kube("v1", "ConfigMap")

encode = msgspec.json.encode


@pytest.mark.parametrize(
    "document",
    [
        encode({**TYPE, "metadata": METADATA, "data": DATA}),
        encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA}),
        encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA}) + b"\n",
        encode({**TYPE, "metadata": {"managedFields": MANAGED, **METADATA}, "data": DATA}),
        encode({**TYPE, "metadata": {**METADATA, "managedFields": None}, "data": DATA}),
        encode({"metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA}),
        encode({"metadata": METADATA, "data": DATA}),
        encode({"metadata": METADATA, "data": DATA, "kind": "", "apiVersion": ""}),
        encode({"metadata": METADATA, "data": DATA, **TYPE}),
        encode({"data": DATA, "metadata": {**METADATA, "managedFields": MANAGED}, **TYPE}),
        encode({"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": DATA}),
        msgspec.json.format(
            encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA})
        ),
    ],
)
@pytest.mark.parametrize("form", [bytes, msgspec.Raw])
def test_each_form_of_an_object_is_decoded_to_the_same_object(document: bytes, form: Any) -> None:
    stored = ObjectDecoder(KIND).stored(form(document))
    assert (stored.key, stored.revision) == ("shop/web", 17)
    assert msgspec.json.decode(stored.value) == {**TYPE, "metadata": METADATA, "data": DATA}
    assert stored.value.startswith(b'{"apiVersion":"v1","kind":"ConfigMap",')


def test_a_copy_of_the_managed_fields_elsewhere_in_the_object_is_kept() -> None:
    template = {"metadata": {"name": "x", "managedFields": MANAGED}}
    metadata = {**METADATA, "managedFields": MANAGED}
    document = encode({**TYPE, "metadata": metadata, "spec": {"template": template}})
    stored = ObjectDecoder(KIND).stored(document)
    assert msgspec.json.decode(stored.value) == {
        **TYPE,
        "metadata": METADATA,
        "spec": {"template": template},
    }


def test_a_kind_with_managed_fields_keeps_them() -> None:
    metadata = {**METADATA, "managedFields": MANAGED}
    document = encode({**TYPE, "metadata": metadata})
    stored = ObjectDecoder(kube("v1", "ConfigMap", managed_fields=True)).stored(document)
    assert msgspec.json.decode(stored.value) == {**TYPE, "metadata": metadata}


def test_a_kind_of_which_only_metadata_is_watched_keeps_no_other_field() -> None:
    document = encode({**TYPE, "metadata": {**METADATA, "managedFields": MANAGED}, "data": DATA})
    stored = ObjectDecoder(kube("v1", "ConfigMap", metadata_only=True)).stored(document)
    assert msgspec.json.decode(stored.value) == {**TYPE, "metadata": METADATA}


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"web","resourceVersion":"1"}',
        encode({**TYPE, "metadata": {"name": "web"}}),
        encode({**TYPE, "metadata": {"name": "web", "resourceVersion": "x"}}),
        encode({**TYPE, "metadata": {"resourceVersion": "1"}}),
        encode(TYPE),
    ],
)
def test_an_invalid_object_is_an_error_of_the_store(document: bytes) -> None:
    with pytest.raises(StoreError, match="invalid ConfigMap"):
        ObjectDecoder(KIND).stored(document)


def test_the_metadata_of_each_value_is_its_own() -> None:
    first_value, second_value = (
        encode({"metadata": {**METADATA, "uid": uid}}) for uid in ("1", "2")
    )
    uids = [
        KIND.metadata(value).uid
        for value in (first_value, first_value, second_value, second_value, first_value)
    ]
    assert uids == ["1", "1", "2", "2", "1"]
    with pytest.raises(InvalidObjectError, match="invalid metadata"):
        kube("v1", "ConfigMap").metadata(b"")


def served(revision: int, text: str = "") -> bytes:
    metadata = {**METADATA, "resourceVersion": str(revision)}
    return encode({**TYPE, "metadata": metadata, "data": {"text": text}})


def test_the_response_and_the_event_of_a_write_are_decoded_once() -> None:
    decoder = ObjectDecoder(KIND)
    first = decoder.sent(served(17) + b"\n")
    assert decoder.sent(served(18)).revision == 18
    assert decoder.sent(served(17)) is first


def test_an_object_that_is_sent_once_more_is_decoded_again() -> None:
    decoder = ObjectDecoder(KIND)
    first, second, third = (decoder.sent(served(17)) for _ in range(3))
    assert second is first
    assert third == first
    assert third is not first


def test_only_the_newest_objects_are_remembered() -> None:
    decoder = ObjectDecoder(KIND)
    first = [decoder.sent(served(revision)) for revision in range(REMEMBERED_MAX + 1)]
    assert decoder.sent(served(REMEMBERED_MAX)) is first[-1]
    assert decoder.sent(served(1)) is first[1]
    assert decoder.sent(served(0)) is not first[0]


def test_a_large_object_is_not_remembered() -> None:
    decoder, large = ObjectDecoder(KIND), served(17, "x" * REMEMBERED_BYTES)
    assert decoder.sent(large) is not decoder.sent(large)
