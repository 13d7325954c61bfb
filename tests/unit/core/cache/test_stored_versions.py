"""An object that is stored as another version of its type, and otherwise the same, is no change."""

import msgspec
import pytest

from natsctl import Object, kv
from natsctl.core.table import Cache
from natsctl.model.objects import STORED_VERSION
from natsctl.model.store import Applied, Change, Listed, Listing, Stored, WatchEvent


class OldShop(Object, frozen=True):
    image: str = ""


class Shop(Object, frozen=True):
    container: str = ""


def convert(old: OldShop) -> Shop:
    return Shop(container=old.image)


KIND = kv(Shop, bucket="shops", older=[(OldShop, convert)])


def old(revision: int, image: str = "a") -> Stored:
    return Stored("shop", revision, msgspec.json.encode({"metadata": {}, "image": image}))


def new(revision: int, container: str = "a") -> Stored:
    metadata = {"annotations": {STORED_VERSION: "2"}}
    value = msgspec.json.encode({"metadata": metadata, "container": container})
    return Stored("shop", revision, value)


def broken(revision: int) -> Stored:
    return Stored("shop", revision, b"?")


class TestConversion:
    """The object of a cache is stored again as the newest version."""

    @pytest.fixture(params=["live", "listed"])
    def relists(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param == "listed")

    def after(self, first: Stored, *later: Stored, relists: bool) -> list[Change[Shop]]:
        """Return the changes of the last state after the first ones."""
        cache = Cache(KIND)
        changes: list[Change[Shop]] = []
        for number, stored in enumerate((first, *later)):
            events: list[WatchEvent] = [Applied(stored)]
            if relists or not number:
                events = [Listing("1"), *events, Listed(stored.revision)]
            changes = [change for event in events for change in cache.apply(event) if change]
        return changes

    def test_a_conversion_is_no_change(self, *, relists: bool) -> None:
        assert self.after(old(1), new(2), relists=relists) == []

    def test_a_conversion_with_other_content_is_a_change(self, *, relists: bool) -> None:
        assert [change.after for change in self.after(old(1), new(2, "b"), relists=relists)] == [
            new(2, "b")
        ]

    def test_the_same_version_stored_again_is_a_change(self, *, relists: bool) -> None:
        assert [change.after for change in self.after(new(1), new(2), relists=relists)] == [new(2)]

    def test_a_conversion_of_an_invalid_object_is_a_change(self, *, relists: bool) -> None:
        changes = self.after(old(1), broken(2), new(3), relists=relists)
        assert [change.after for change in changes] == [new(3)]

    def test_the_first_state_is_a_change(self, *, relists: bool) -> None:
        assert [change.after for change in self.after(old(1), relists=relists)] == [old(1)]
