"""A cache of secondaries keeps the values of some owners, and the owners of the other objects."""

from collections.abc import Collection

import msgspec

from natsctl import Invalid, Metadata, Object, OwnerNames, kv
from natsctl.controller.slots.owners import Owner
from natsctl.core.table import Cache, Keeping, Unread
from natsctl.model.store import Applied, Change, Deleted, Listed, Listing, Stored, WatchEvent

KIND = kv(Object, bucket="objects")
NAMES = OwnerNames()
SHOP, BANK = Owner("Site.sites", "shop"), Owner("Site.sites", "bank")


def part(revision: int, owner: Owner, *, label: Owner | None = None, key: str = "part") -> Stored:
    labels, annotations = NAMES.labels(label or owner), NAMES.annotations(owner)
    value = msgspec.json.encode(Object(metadata=Metadata(labels=labels, annotations=annotations)))
    return Stored(key, revision, value)


def cache_of(kept: Collection[str], rejected: list[Invalid] | None = None) -> Cache[Object]:
    keeping = Keeping(
        kept.__contains__, NAMES.stored_owner_key(KIND, "Site.sites"), index="by owner"
    )
    indexes = {"by owner": NAMES.index(KIND, "Site.sites")}
    return Cache(KIND, indexes, ([] if rejected is None else rejected).append, keeping=keeping)


def fold(cache: Cache[Object], *events: WatchEvent) -> list[Change[Object]]:
    return [change for event in events for change in cache.apply(event) if change is not None]


def listed(cache: Cache[Object], *stored: Stored, incarnation: str = "1") -> list[Change[Object]]:
    return fold(cache, Listing(incarnation), *map(Applied, stored), Listed(100))


def test_the_object_of_another_owner_has_its_revision_and_is_found_by_its_owner() -> None:
    cache = cache_of({"bank"})
    listed(cache, part(1, SHOP), part(2, BANK, key="note"))
    assert cache.get("part") == Unread("part", 1, b"")
    assert cache.by_index("by owner", "shop") == [Unread("part", 1, b"")]
    assert cache.get("note") == part(2, BANK, key="note")


def test_the_value_of_an_object_whose_owner_is_disputed_is_kept() -> None:
    cache = cache_of(())
    listed(cache, part(1, SHOP, label=BANK))
    assert cache.get("part") == part(1, SHOP, label=BANK)


def test_the_value_of_an_object_without_an_owner_is_kept() -> None:
    cache = cache_of(())
    listed(cache, Stored("part", 1, b"{}"))
    assert cache.get("part") == Stored("part", 1, b"{}")


def test_an_object_that_comes_to_an_owner_of_this_process_has_its_value() -> None:
    cache = cache_of({"bank"})
    listed(cache, part(1, SHOP))
    (change,) = fold(cache, Applied(part(2, BANK)))
    assert (change.before, change.after) == (Unread("part", 1, b""), part(2, BANK))
    assert cache.by_index("by owner", "shop") == []


def test_an_object_that_goes_to_another_owner_has_no_value() -> None:
    cache = cache_of({"shop"})
    listed(cache, part(1, SHOP))
    (change,) = fold(cache, Applied(part(2, BANK)))
    assert (change.before, change.after) == (part(1, SHOP), Unread("part", 2, b""))
    assert cache.by_index("by owner", "bank") == [Unread("part", 2, b"")]


def test_a_recreated_store_may_have_another_owner_at_the_same_revision() -> None:
    cache = cache_of(())
    listed(cache, part(1, SHOP))
    listed(cache, part(1, BANK), incarnation="2")
    assert cache.by_index("by owner", "shop") == []
    assert cache.by_index("by owner", "bank") == [Unread("part", 1, b"")]


def test_an_object_that_becomes_invalid_has_no_owner() -> None:
    rejected: list[Invalid] = []
    cache = cache_of((), rejected)
    listed(cache, part(1, SHOP))
    fold(cache, Applied(Stored("part", 2, b"?")))
    assert [invalid.last for invalid in rejected] == [None]
    assert cache.by_index("by owner", "shop") == []


def test_an_object_without_a_value_can_be_deleted() -> None:
    cache = cache_of(())
    listed(cache, part(1, SHOP))
    (change,) = fold(cache, Deleted("part", 2))
    assert (change.before, change.after) == (Unread("part", 1, b""), None)
    assert cache.by_index("by owner", "shop") == []


def test_a_value_is_read_for_its_owner() -> None:
    kept: set[str] = set()
    cache = cache_of(kept)
    listed(cache, part(1, SHOP), part(2, BANK, key="note"))
    kept.add("shop")
    assert [key for key in cache.unread(kept.__contains__) if key] == ["part"]
    cache.fill(part(1, SHOP))
    assert cache.get("part") == part(1, SHOP)


def test_a_value_is_forgotten_when_the_owner_goes_to_another_process() -> None:
    kept = {"shop", "bank"}
    cache = cache_of(kept)
    listed(cache, part(1, SHOP), part(2, BANK, key="note"), part(3, SHOP, label=BANK, key="odd"))
    kept.remove("shop")
    for key in ("part", "note", "odd"):
        cache.release(key)
    assert cache.get("part") == Unread("part", 1, b"")
    assert cache.get("note") == part(2, BANK, key="note")
    assert cache.get("odd") == part(3, SHOP, label=BANK, key="odd")


def test_an_object_belongs_to_its_owner() -> None:
    cache = cache_of(())
    listed(cache, part(1, SHOP), part(2, BANK, key="note"))
    assert cache.belongs_to("shop", "part")
    assert not cache.belongs_to("bank", "part")
    assert list(cache.of_primary("bank")) == ["note"]


def test_an_object_that_comes_to_an_owner_of_this_process_is_kept_once_values_are_read() -> None:
    cache = cache_of({"bank"})
    listed(cache, part(1, SHOP))
    cache.settle_kept(settled=True)
    fold(cache, Applied(part(2, BANK)))
    assert cache.get("part") == part(2, BANK)


def test_an_object_whose_owner_becomes_disputed_is_kept_once_values_are_read() -> None:
    cache = cache_of(())
    listed(cache, part(1, SHOP))
    cache.settle_kept(settled=True)
    fold(cache, Applied(part(2, SHOP, label=BANK)))
    assert cache.get("part") == part(2, SHOP, label=BANK)


def test_an_object_without_a_value_is_in_no_derived_index() -> None:
    owner_of = NAMES.stored_owner_key(KIND, "Site.sites")
    keeping = Keeping({"bank"}.__contains__, owner_of, index="by owner", derived=("all",))
    indexes = {"by owner": NAMES.index(KIND, "Site.sites"), "all": lambda _: ("x",)}
    cache = Cache(KIND, indexes, keeping=keeping)
    listed(cache, part(1, SHOP), part(2, BANK, key="note"))
    assert [stored.key for stored in cache.by_index("all", "x")] == ["note"]
