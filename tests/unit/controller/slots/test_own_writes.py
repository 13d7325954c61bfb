"""Of all changes of a store, it is known which a sync of ours has made, and of which key."""

import pytest

from natsctl.controller.slots.own_writes import OwnWrites
from natsctl.model.store import Change
from tests.support.stores.sample_objects import THINGS, Thing, stored


class Told:
    """Notes the changes that nobody here made in `changes`, and whose the others are in `ours`."""

    def __init__(self) -> None:
        self.changes: list[Change[Thing]] = []
        self.ours: list[str] = []
        self.undone: list[str] = []
        self.own = OwnWrites(self.take, self.undone.append)

    def take(self, change: Change[Thing], writer: str | None) -> None:
        if writer is None:
            self.changes.append(change)
        else:
            self.ours.append(writer)

    def see(self, before: int | None, after: int | None, key: str = "x") -> Change[Thing]:
        """Show the change of an object from one revision to another; None: not there."""
        change = Change(
            THINGS,
            key,
            None if before is None else stored(key, before),
            None if after is None else stored(key, after),
        )
        self.own.see(change)
        return change


@pytest.fixture
def told() -> Told:
    return Told()


def write(told: Told, base: int, result: int | None) -> None:
    """Write, and hear of it before the store tells."""
    with told.own.writing("x"):
        told.own.landed("x", writer="a", base=base, result=result)


class TestForeign:
    def test_what_others_wrote_is_passed_on(self, told: Told) -> None:
        changes = [told.see(None, 1), told.see(1, 2), told.see(2, None)]
        assert told.changes == changes

    def test_what_others_wrote_to_another_object_is_passed_on(self, told: Told) -> None:
        write(told, 0, 1)
        other = told.see(None, 1, key="other")
        assert told.changes == [other]


class TestOwn:
    """Seen after the write was acknowledged."""

    @pytest.mark.parametrize(("base", "result"), [(0, 1), (1, 2), (1, None)])
    def test_it_is_known_whose_it_is(self, told: Told, base: int, result: int | None) -> None:
        write(told, base, result)
        told.see(base or None, result)
        assert told.changes == []
        assert told.ours == ["a"]

    def test_it_is_ours_once(self, told: Told) -> None:
        write(told, 0, 1)
        told.see(None, 1)
        again = told.see(None, 1)
        assert told.changes == [again]

    def test_several_in_a_row_are_each_known(self, told: Told) -> None:
        for base, result in ((0, 1), (1, 2), (2, None)):
            write(told, base, result)
        for before, after in ((None, 1), (1, 2), (2, None)):
            told.see(before, after)
        assert told.changes == []
        assert told.ours == ["a", "a", "a"]

    def test_each_is_known_by_its_own_writer(self, told: Told) -> None:
        for writer, base, result in (("a", 0, 1), ("b", 1, 2)):
            told.own.landed("x", writer=writer, base=base, result=result)
        for before, after in ((None, 1), (1, 2)):
            told.see(before, after)
        assert told.ours == ["a", "b"]

    def test_what_follows_is_passed_on(self, told: Told) -> None:
        write(told, 0, 1)
        told.see(None, 1)
        theirs = told.see(1, 2)
        assert told.changes == [theirs]


class TestInBetween:
    """A change that spans more than our own write is news."""

    def test_what_others_wrote_before_us_is_passed_on_and_ours_is_not(self, told: Told) -> None:
        write(told, 2, 3)
        theirs = told.see(1, 2)
        told.see(2, 3)
        assert told.changes == [theirs]

    def test_what_others_wrote_after_us_is_passed_on_and_ours_is_not(self, told: Told) -> None:
        write(told, 1, 2)
        told.see(1, 2)
        theirs = told.see(2, 3)
        assert told.changes == [theirs]

    @pytest.mark.parametrize(("before", "after"), [(1, 3), (1, 4), (2, 4), (None, 3), (2, None)])
    def test_one_change_that_covers_ours_and_others_is_passed_on(
        self, told: Told, before: int | None, after: int | None
    ) -> None:
        write(told, 2, 3)
        change = told.see(before, after)
        assert told.changes == [change]

    def test_one_that_covers_our_deletion_and_a_creation_of_others_is_passed_on(
        self, told: Told
    ) -> None:
        write(told, 1, None)
        change = told.see(1, 9)
        assert told.changes == [change]

    def test_a_write_whose_change_never_comes_hides_nothing_later(self, told: Told) -> None:
        write(told, 2, 3)
        changes = [told.see(1, 5), told.see(5, 6)]
        assert told.changes == changes


class TestUnderWay:
    """A change may be seen before its write is acknowledged."""

    def test_our_own_is_known_all_the_same(self, told: Told) -> None:
        with told.own.writing("x"):
            told.see(None, 1)
            told.own.landed("x", writer="a", base=0, result=1)
        assert told.changes == []

    def test_what_others_wrote_meanwhile_is_passed_on_afterwards(self, told: Told) -> None:
        with told.own.writing("x"):
            before = told.see(None, 1)
            told.see(1, 2)
            after = told.see(2, 3)
            told.own.landed("x", writer="a", base=1, result=2)
            assert told.changes == []
        assert told.changes == [before, after]

    def test_other_objects_are_not_held_up(self, told: Told) -> None:
        with told.own.writing("x"):
            other = told.see(None, 1, key="other")
            assert told.changes == [other]

    def test_a_write_that_fails_hides_nothing(self, told: Told) -> None:
        seen: list[Change[Thing]] = []

        def fail() -> None:
            with told.own.writing("x"):
                seen.append(told.see(None, 1))
                raise OSError("no")

        with pytest.raises(OSError, match="no"):
            fail()
        assert told.changes == seen

    def test_a_write_that_was_not_needed_hides_nothing(self, told: Told) -> None:
        with told.own.writing("x"):
            theirs = told.see(None, 1)
        assert told.changes == [theirs]

    def test_two_writers_at_once_hold_until_both_are_done(self, told: Told) -> None:
        with told.own.writing("x"):
            with told.own.writing("x"):
                told.see(None, 1)
                told.see(1, 2)
                told.own.landed("x", writer="a", base=0, result=1)
            assert told.changes == []
            told.own.landed("x", writer="a", base=1, result=2)
        assert told.changes == []


class TestUndone:
    """A write of which a complete listing shows nothing was undone while nobody watched."""

    def test_its_writer_is_told(self, told: Told) -> None:
        write(told, 0, 1)
        told.own.listed()
        assert told.undone == ["a"]

    def test_a_writer_is_told_once_however_much_was_undone(self, told: Told) -> None:
        for key in ("x", "y"):
            told.own.landed(key, writer="a", base=0, result=1)
        told.own.landed("x", writer="b", base=1, result=2)
        told.own.listed()
        assert sorted(told.undone) == ["a", "b"]

    def test_one_that_was_seen_is_not_undone(self, told: Told) -> None:
        write(told, 0, 1)
        told.see(None, 1)
        told.own.listed()
        assert told.undone == []

    def test_it_is_told_once(self, told: Told) -> None:
        write(told, 0, 1)
        told.own.listed()
        told.own.listed()
        assert told.undone == ["a"]

    def test_what_is_seen_of_it_later_is_nobodys(self, told: Told) -> None:
        write(told, 0, 1)
        told.own.listed()
        change = told.see(None, 1)
        assert (told.changes, told.ours) == ([change], [])

    def test_who_does_not_ask_is_not_told(self) -> None:
        own = OwnWrites(lambda _change, _writer: None)
        own.landed("x", writer="a", base=0, result=1)
        own.listed()
