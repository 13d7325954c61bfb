"""An order that follows changes equals the order that is made of the last objects."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from natsctl.console.orders import Order, rank_by
from natsctl.jetstream.bucket.bucket import Message

KEYS = st.sampled_from([f"{letter}{number}" for letter in "ab" for number in range(6)])
TIERS = st.sampled_from(["core", "edge"])
CHANGES = st.lists(st.tuples(KEYS, st.none() | TIERS), max_size=30)
COLUMNS = st.sampled_from(["KEY", "REVISION", "AGE", "READY"])


class FakeObjects:
    """Objects that a test changes; only the last `kept` changes are known by key."""

    def __init__(self, kept: int) -> None:
        self.changes = 0
        self._kept = kept
        self._log: list[str] = []
        self._messages: dict[str, Message] = {}

    async def keys(self) -> Sequence[str]:
        return sorted(self._messages)

    def changed_since(self, changes: int) -> Sequence[str] | None:
        missed = self.changes - changes if changes >= 0 else self._kept + 1
        return None if missed > self._kept else self._log[len(self._log) - missed :]

    def message(self, key: str) -> Message | None:
        return self._messages.get(key)

    def change(self, key: str, tier: str | None) -> None:
        self.changes += 1
        self._log.append(key)
        if tier is None:
            self._messages.pop(key, None)
        else:
            value = {"metadata": {"labels": {"tier": tier}}, "status": {"ready": tier == "core"}}
            created = f"2026-11-22T20:00:{self.changes % 60:02}Z"
            data = json.dumps(value).encode()
            self._messages[key] = Message(key, self.changes, data, None, created)


@given(
    batches=st.lists(CHANGES, max_size=5),
    column=COLUMNS,
    labels=st.sampled_from(["", "tier=core"]),
    search=st.sampled_from(["", "a"]),
    kept=st.integers(min_value=0, max_value=40),
)
async def test_an_order_that_follows_changes_equals_a_new_one(
    batches: list[list[tuple[str, str | None]]], column: str, labels: str, search: str, kept: int
) -> None:
    objects = FakeObjects(kept)
    rank = rank_by(labels, column, {})
    followed = Order(objects, search, rank)
    for batch in batches:
        for key, tier in batch:
            objects.change(key, tier)
        await followed.refresh()
        fresh = Order(objects, search, rank)
        await fresh.refresh()
        assert followed.keys(0, 100) == fresh.keys(0, 100)
        assert len(followed) == len(fresh)


async def test_a_change_ranks_the_changed_object_only() -> None:
    objects, ranked = FakeObjects(10), list[str]()

    def rank(message: Message) -> int:
        ranked.append(message.key)
        return message.revision

    for number in range(1000):
        objects.change(f"key-{number}", "core")
    order = Order(objects, "", rank)
    await order.refresh()
    ranked.clear()
    objects.change("key-5", "edge")
    await order.refresh()
    assert ranked == ["key-5"]
    assert order.keys(999, 1000) == ["key-5"]
