"""Merging a new change into those that a watcher has not taken yet."""

import pytest

from natsctl.model.store import Stored
from natsctl.testing import MemoryStore
from natsctl.watchers.merged_changes import ObjectChange, merged
from tests.support.controllers.recording_watcher import SITES, site, text

STORE = MemoryStore(SITES)


def stored(state: str | None) -> Stored | None:
    """Return a stored state: text before a dot is the spec, text after it the status."""
    if state is None:
        return None
    spec, _, status = state.partition(".")
    return Stored("berlin", 1, site(spec, status=status or None))


def change(before: str | None, after: str | None) -> ObjectChange:
    return ObjectChange("berlin", SITES, STORE, stored(before), stored(after))


def summary(waiting: tuple[ObjectChange, ...]) -> list[str]:
    """Return the changes in short form: `+a`, `a>b`, `-a`."""
    lines = []
    for pending in waiting:
        old, new = pending.old, pending.new
        match old, new:
            case None, None:
                lines.append("-?")
            case None, _ if new is not None:
                lines.append(f"+{text(new)}")
            case _, None if old is not None:
                lines.append(f"-{text(old)}")
            case _ if old is not None and new is not None:
                lines.append(f"{text(old)}>{text(new)}")
    return lines


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((None, "a"), ("a", "b"), ["+b"]),
        ((None, "a"), (None, "b"), ["+b"]),
        ((None, "a"), ("a", None), ["-a"]),
        (("a", "b"), ("b", "c"), ["a>c"]),
        (("a", "b"), ("b", "b.1"), ["a>b"]),
        (("a", "b"), ("b", "a"), ["b>a"]),
        (("a", "a.1"), ("a.1", "a.2"), ["a>a"]),
        (("a", "b"), ("b", None), ["-b"]),
        (("a", "b"), (None, None), ["-b"]),
        (("a", None), (None, "b"), ["-a", "+b"]),
        (("a", None), (None, None), ["-a"]),
        ((None, None), (None, "b"), ["-?", "+b"]),
    ],
)
def test_two_changes_are_merged(
    first: tuple[str | None, str | None],
    second: tuple[str | None, str | None],
    expected: list[str],
) -> None:
    assert summary(merged((change(*first),), change(*second))) == expected


def test_an_object_recreated_and_changed_is_deleted_and_added() -> None:
    waiting = merged((change("a", None),), change(None, "b"))
    assert summary(merged(waiting, change("b", "c"))) == ["-a", "+c"]


def test_an_object_recreated_and_deleted_is_deleted_once() -> None:
    waiting = merged((change("a", None),), change(None, "b"))
    assert summary(merged(waiting, change("b", None))) == ["-a"]


def test_a_status_change_does_not_supersede_but_a_spec_change_does() -> None:
    assert not change("a", "b.1").supersedes(change("a", "b"))
    assert change("a", "c").supersedes(change("a", "b"))


def test_another_action_supersedes() -> None:
    assert change("a", None).supersedes(change("x", "a"))
    assert change("x", None).supersedes(change(None, None))
    assert not change(None, None).supersedes(change(None, None))
