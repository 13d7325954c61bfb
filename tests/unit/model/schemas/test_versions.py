"""Objects that were stored as older types are read and written as the newest type."""

from typing import Any

import msgspec
import pytest

from natsctl import Object, kv
from natsctl.errors import InvalidObjectError, UsageError
from natsctl.model import documents
from natsctl.model.objects import STORED_VERSION


class SpecV1(msgspec.Struct, frozen=True):
    image: str
    timeout: int = 5  # seconds


class ShopV1(Object, frozen=True):
    spec: SpecV1


class Door(msgspec.Struct, frozen=True):
    colour: str = "red"


class SpecV2(msgspec.Struct, frozen=True):
    image: str
    timeout: int = 5000  # milliseconds
    door: Door = Door()


class ShopV2(Object, frozen=True):
    spec: SpecV2


class Spec(msgspec.Struct, frozen=True):
    container: str = "none"
    timeout: int = 5000
    door: Door = Door()


class Shop(Object, frozen=True):
    spec: Spec


def from_v1(old: ShopV1) -> Shop:
    if old.spec.image == "broken":
        raise ValueError("no such image")
    return Shop(spec=Spec(container=old.spec.image, timeout=old.spec.timeout * 1000))


def from_v2(old: ShopV2) -> Shop:
    return Shop(spec=Spec(container=old.spec.image, timeout=old.spec.timeout, door=old.spec.door))


SHOPS_V1 = kv(ShopV1, bucket="shops")
SHOPS = kv(Shop, bucket="shops", older=[(ShopV2, from_v2), (ShopV1, from_v1)])


def value(spec: object, version: int | None = None, **fields: object) -> bytes:
    annotations = {} if version is None else {STORED_VERSION: str(version)}
    metadata = {"uid": "u", "generation": 3, "labels": {"a": "b"}, "annotations": annotations}
    return msgspec.json.encode({"metadata": metadata, "spec": spec, **fields})


def document(encoded: bytes) -> Any:
    return msgspec.json.decode(encoded)


class TestReading:
    @pytest.mark.parametrize(
        ("stored", "expected"),
        [
            (value({"image": "a"}), Spec("a", 5000)),
            (value({"image": "a", "timeout": 7}), Spec("a", 7000)),
            (value({"image": "a", "timeout": 7}, 2), Spec("a", 7)),
            (value({"image": "a", "door": {"colour": "blue"}}, 2), Spec("a", 5000, Door("blue"))),
            (value({"container": "a", "timeout": 7}, 3), Spec("a", 7)),
        ],
    )
    def test_an_object_is_read_as_the_version_that_it_states(
        self, stored: bytes, expected: Spec
    ) -> None:
        assert SHOPS.decode(stored).spec == expected

    @pytest.mark.parametrize(
        ("stored", "expected"),
        [
            (value({"container": "a", "timeout": 7}), Spec("a", 7)),
            (value({"container": "a", "timeout": 7}, 2), Spec("a", 7)),
            (value({"image": "a", "door": {"colour": "blue"}}), Spec("a", 5000, Door("blue"))),
        ],
    )
    def test_an_object_that_states_another_version_is_read_by_its_fields(
        self, stored: bytes, expected: Spec
    ) -> None:
        assert SHOPS.decode(stored).spec == expected

    def test_the_metadata_and_the_status_need_not_be_copied_by_an_upgrade(self) -> None:
        shop = SHOPS.decode(value({"image": "a"}, status={"ready": True}))
        assert (shop.metadata.uid, shop.metadata.generation, shop.metadata.labels) == (
            "u",
            3,
            {"a": "b"},
        )
        assert shop.status == {"ready": True}

    def test_an_upgrade_that_returns_another_type_makes_the_object_invalid(self) -> None:
        shops: Any = kv(Shop, bucket="shops", older=[(ShopV1, lambda _: {})])
        with pytest.raises(InvalidObjectError, match="returns dict, not Shop"):
            shops.decode(value({"image": "a"}))

    def test_a_value_that_no_version_reads_has_the_error_of_the_newest(self) -> None:
        with pytest.raises(InvalidObjectError, match=r"not a valid Shop: .* `\$\.spec`"):
            SHOPS.decode(value(3))

    def test_a_version_without_its_older_types_keeps_its_number(self) -> None:
        shops = kv(Shop, bucket="shops", version=3)
        assert shops.version == 3
        assert shops.decode(value({"container": "a"}, 3)).spec.container == "a"


class TestNewerVersions:
    def test_an_older_program_reads_what_it_can(self) -> None:
        assert SHOPS_V1.decode(value({"image": "a", "door": {}}, 2)).spec.image == "a"

    def test_an_invalid_object_of_a_known_version_is_not_of_a_newer_one(self) -> None:
        with pytest.raises(InvalidObjectError) as raised:
            SHOPS.decode(value(3, 3))
        assert type(raised.value) is InvalidObjectError

    def test_an_older_program_keeps_the_version_and_the_fields_that_it_does_not_know(self) -> None:
        newer = value({"image": "a", "door": {"colour": "blue"}}, 2)
        written = document(SHOPS_V1.encode(newer, ShopV1(spec=SpecV1("b"))))
        assert written["spec"] == {"image": "b", "timeout": 5, "door": {"colour": "blue"}}
        assert written["metadata"]["annotations"] == {STORED_VERSION: "2"}


class TestWriting:
    def test_a_new_object_states_its_version(self) -> None:
        written = document(SHOPS.encode(None, Shop(spec=Spec("a"))))
        assert written["metadata"]["annotations"] == {STORED_VERSION: "3"}

    def test_a_new_object_of_the_first_version_states_none(self) -> None:
        written = document(SHOPS_V1.encode(None, ShopV1(spec=SpecV1("a"))))
        assert "annotations" not in written["metadata"]

    def test_the_generation_grows_only_with_a_change_of_the_desired_state(self) -> None:
        old = value({"image": "a", "timeout": 5})
        assert SHOPS.encode(old, SHOPS.decode(old)) == old
        changed = document(SHOPS.encode(old, Shop(spec=Spec("b"))))
        assert changed["metadata"]["generation"] == 4

    def test_numbers_that_a_float_would_round_are_kept(self) -> None:
        old = b'{"spec": {"image": "a", "theirs": 1.1000000000000000000000001}}'
        assert b"1.1000000000000000000000001" in documents.render(SHOPS.document(old))


class TestComparing:
    def test_a_kind_of_one_version_ignores_the_annotation(self) -> None:
        assert not SHOPS_V1.differs(value({"image": "a"}), value({"image": "a"}, 2))


class TestDeclaration:
    def test_a_version_below_the_number_of_types_is_refused(self) -> None:
        with pytest.raises(UsageError, match="its version is at least 3, not 2"):
            kv(Shop, bucket="b", older=[(ShopV2, from_v2), (ShopV1, from_v1)], version=2)

    def test_a_plain_type_cannot_have_older_types(self) -> None:
        with pytest.raises(UsageError, match=r"a subclass of natsctl\.Object, and Spec is not"):
            kv(Spec, bucket="b", older=[(ShopV1, lambda old: Spec(old.spec.image))])
