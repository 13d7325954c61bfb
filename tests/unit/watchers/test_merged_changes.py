"""What a watcher has not taken, and what happens then, come to at most two things."""

import pytest

from natsctl.model.store import Stored
from natsctl.testing.memory import MemoryStore
from natsctl.watchers.merged_changes import ObjectChange, merged
from tests.support.controllers.recording_watcher import SITES, site, text

STORE = MemoryStore(SITES)


def stored(says: str | None) -> Stored | None:
    """Return a state: a text in lower case desires, what follows a dot does not."""
    if says is None:
        return None
    wanted, _, status = says.partition(".")
    return Stored("berlin", 1, site(wanted, status=status or None))


def news(before: str | None, after: str | None) -> ObjectChange:
    return ObjectChange("berlin", SITES, STORE, stored(before), stored(after))


def told(waiting: tuple[ObjectChange, ...]) -> list[str]:
    """Return what is told, in short: `+a`, `a>b`, `-a`."""
    shown = []
    for each in waiting:
        old, new = each.old, each.new
        match old, new:
            case None, None:
                shown.append("-?")
            case None, _ if new is not None:
                shown.append(f"+{text(new)}")
            case _, None if old is not None:
                shown.append(f"-{text(old)}")
            case _ if old is not None and new is not None:
                shown.append(f"{text(old)}>{text(new)}")
    return shown


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
def test_two_things_come_to(
    first: tuple[str | None, str | None],
    second: tuple[str | None, str | None],
    expected: list[str],
) -> None:
    assert told(merged((news(*first),), news(*second))) == expected


def test_an_object_made_anew_and_changed_is_deleted_and_added_as_it_is() -> None:
    waiting = merged((news("a", None),), news(None, "b"))
    assert told(merged(waiting, news("b", "c"))) == ["-a", "+c"]


def test_an_object_made_anew_and_deleted_is_deleted_once() -> None:
    waiting = merged((news("a", None),), news(None, "b"))
    assert told(merged(waiting, news("b", None))) == ["-a"]


def test_a_status_says_no_more_and_a_desire_does() -> None:
    assert not news("a", "b.1").supersedes(news("a", "b"))
    assert news("a", "c").supersedes(news("a", "b"))


def test_another_action_says_more() -> None:
    assert news("a", None).supersedes(news("x", "a"))
    assert news("x", None).supersedes(news(None, None))
    assert not news(None, None).supersedes(news(None, None))
