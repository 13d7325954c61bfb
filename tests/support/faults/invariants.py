"""Checks that hold after every fault, with reads from the leaders of the buckets."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from natsctl import Primary, Secondary
from tests.support.clients.nats_admin import FAILURES, Admin, Entry
from tests.support.controllers.copy_controller import COPIES, THINGS, Copies, Thing
from tests.support.eventually import eventually

OWNER_KIND = "natsctl.io/owner-kind"
FOREIGN = {
    "foreign.0": {"spec": {"text": "nobody's"}},
    "k0.foreign": {"spec": {"text": "nobody's, though it is named like ours"}},
    "other.0": {
        "metadata": {
            "labels": {OWNER_KIND: "Other.others", "natsctl.io/owner-key": "k1"},
            "annotations": {OWNER_KIND: "Other.others", "natsctl.io/owner-key": "k1"},
        },
        "spec": {"text": "another controller's, whose owner has a key like ours"},
    },
}
"""Objects in the bucket of copies that the controller does not own."""


class Checker:
    """Compares the caches and the writes of a controller with the content of the servers.

    Without *controller*, which may be in another process, only the writes are compared.
    """

    def __init__(self, admin: Admin, controller: Copies | None = None) -> None:
        self._admin = admin
        self._controller = controller
        self._foreign: dict[str, Entry] = {}

    async def begin(self) -> None:
        """Put foreign objects into the bucket of copies."""
        for key, document in FOREIGN.items():
            await self._admin.put(COPIES, key, document)
            self._foreign[key] = await self._admin.entry(COPIES, key)

    def forget_foreign(self) -> None:
        """Expect no foreign objects, because an administrator deletes them."""
        self._foreign.clear()

    async def settled(
        self, *, kept: Mapping[str, bytes] | None = None, within_s: float = 120.0
    ) -> None:
        """Wait until copies and caches match the things.

        *kept* are copies that remain although their thing does not exist.
        """
        await eventually(lambda: self._checked(kept or {}), within_s=within_s, every_s=0.1)

    async def copies(self) -> dict[str, bytes]:
        """Return the controller's copies from the leader."""
        entries = living(await self._admin.entries(COPIES))
        return {key: entry.value for key, entry in entries.items() if key not in self._foreign}

    async def only_deleted(self, mortal: Collection[str], meddled: Collection[str]) -> None:
        """Assert that only copies of *mortal* things and *meddled* copies were ever deleted.

        The controller must not have seen the deletion of any other thing.
        """
        deleted = await self._admin.markers(COPIES) - set(meddled)
        assert {key.partition(".")[0] for key in deleted} <= set(mortal)
        if self._controller is not None:
            assert self._controller.sights.gone <= set(mortal)

    async def _checked(self, kept: Mapping[str, bytes]) -> bool:
        try:
            things = living(await self._admin.entries(THINGS))
            copies = living(await self._admin.entries(COPIES))
        except FAILURES as error:
            raise AssertionError(f"the servers cannot be read: {error!r}") from error
        if self._controller is not None:
            same(self._controller.things, things)
            same(self._controller.copies, copies)
            _latest_synced(self._controller, things)
        self._follow(things, copies, kept)
        return True

    def _follow(
        self, things: Mapping[str, Entry], copies: dict[str, Entry], kept: Mapping[str, bytes]
    ) -> None:
        """Assert that the copies match the things, except for foreign and kept copies."""
        for key, entry in self._foreign.items():
            assert copies.pop(key, None) == entry, f"{key} was touched"
        for key, value in kept.items():
            assert copies.pop(key).value == value, f"{key} was touched"
        wanted = {}  # type: ignore[var-annotated]
        for key, stored_thing in _decoded(things).items():
            assert stored_thing.status.get("said") == stored_thing.spec.text, (
                f"{key} is {things[key]}"
            )
            wanted |= {
                f"{key}.{number}": stored_thing.spec.text
                for number in range(stored_thing.spec.copies)
            }
        equal({key: text_of(entry.value) for key, entry in copies.items()}, wanted)


def _latest_synced(controller: Copies, things: Mapping[str, Entry]) -> None:
    texts = {key: stored_thing.spec.text for key, stored_thing in _decoded(things).items()}
    runtime = controller.runtime
    equal(controller.sights.synced, texts, lambda key: (things.get(key), runtime.explain(key)))
    assert runtime.status().failing == {}


def equal(
    actual: Mapping[str, object],
    wanted: Mapping[str, object],
    explain: Callable[[str], object] = str,
) -> None:
    """Assert that both mappings are equal. The error explains one key that differs."""
    wrong = sorted(k for k in {*actual, *wanted} if actual.get(k) != wanted.get(k))
    if wrong:
        key = wrong[0]
        raise AssertionError(
            f"{len(wrong)} keys differ, {key} is {actual.get(key)}, not {wanted.get(key)}; "
            f"{explain(key)}"
        )


def same(slot: Primary[Any] | Secondary[Any], entries: Mapping[str, Entry]) -> None:
    """Assert that the slot's cache holds exactly these entries."""
    cache = slot.informer.table
    entries_of_cache = [cache.get(key) for key in tuple(cache.keys())]
    cached = {
        entry.key: (entry.revision, entry.value) for entry in entries_of_cache if entry is not None
    }
    equal(cached, {key: (entry.revision, entry.value) for key, entry in entries.items()})


def living(entries: Mapping[str, Entry]) -> dict[str, Entry]:
    return {key: entry for key, entry in entries.items() if not entry.marker}


def _decoded(entries: Mapping[str, Entry]) -> dict[str, Thing]:
    return {key: msgspec.json.decode(entry.value, type=Thing) for key, entry in entries.items()}


def text_of(value: bytes) -> str:
    return str(msgspec.json.decode(value)["spec"]["text"])
