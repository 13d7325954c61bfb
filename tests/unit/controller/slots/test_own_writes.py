"""Recognition of the changes that a controller's own syncs wrote."""

import pytest

from natsctl.core.writes import OwnWrites
from natsctl.model.store import Change
from tests.support.stores.sample_objects import THINGS, Thing, stored


class Recorder:
    """Records foreign changes in `changes` and the writers of own changes in `ours`."""

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
        """Show a change from one revision to another; None means that the object does not exist."""
        change = Change(
            THINGS,
            key,
            None if before is None else stored(key, before),
            None if after is None else stored(key, after),
        )
        self.own.see(change)
        return change


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def write(recorder: Recorder, base: int, result: int | None) -> None:
    """Acknowledge a write before its change is shown."""
    with recorder.own.writing("x"):
        recorder.own.landed("x", writer="a", base=base, result=result)


class TestForeignWrites:
    def test_changes_by_others_are_passed_on(self, recorder: Recorder) -> None:
        changes = [recorder.see(None, 1), recorder.see(1, 2), recorder.see(2, None)]
        assert recorder.changes == changes

    def test_changes_by_others_to_another_object_are_passed_on(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        other_change = recorder.see(None, 1, key="other")
        assert recorder.changes == [other_change]


class TestOwnWrites:
    """The change is shown after the write was acknowledged."""

    @pytest.mark.parametrize(("base", "result"), [(0, 1), (1, 2), (1, None)])
    def test_an_own_write_is_attributed_to_its_writer(
        self, recorder: Recorder, base: int, result: int | None
    ) -> None:
        write(recorder, base, result)
        recorder.see(base or None, result)
        assert recorder.changes == []
        assert recorder.ours == ["a"]

    def test_an_own_write_is_attributed_once(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.see(None, 1)
        repeated_change = recorder.see(None, 1)
        assert recorder.changes == [repeated_change]

    def test_several_own_writes_in_a_row_are_attributed(self, recorder: Recorder) -> None:
        for base, result in ((0, 1), (1, 2), (2, None)):
            write(recorder, base, result)
        for before, after in ((None, 1), (1, 2), (2, None)):
            recorder.see(before, after)
        assert recorder.changes == []
        assert recorder.ours == ["a", "a", "a"]

    def test_each_own_write_is_attributed_to_its_own_writer(self, recorder: Recorder) -> None:
        for writer, base, result in (("a", 0, 1), ("b", 1, 2)):
            recorder.own.landed("x", writer=writer, base=base, result=result)
        for before, after in ((None, 1), (1, 2)):
            recorder.see(before, after)
        assert recorder.ours == ["a", "b"]

    def test_a_later_change_by_others_is_passed_on(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.see(None, 1)
        theirs = recorder.see(1, 2)
        assert recorder.changes == [theirs]


class TestCombinedChanges:
    """A change that covers more than an own write counts as foreign."""

    def test_a_change_by_others_before_an_own_write_is_passed_on(self, recorder: Recorder) -> None:
        write(recorder, 2, 3)
        theirs = recorder.see(1, 2)
        recorder.see(2, 3)
        assert recorder.changes == [theirs]

    def test_a_change_by_others_after_an_own_write_is_passed_on(self, recorder: Recorder) -> None:
        write(recorder, 1, 2)
        recorder.see(1, 2)
        theirs = recorder.see(2, 3)
        assert recorder.changes == [theirs]

    @pytest.mark.parametrize(("before", "after"), [(1, 3), (1, 4), (2, 4), (None, 3), (2, None)])
    def test_a_change_that_covers_own_and_foreign_writes_is_passed_on(
        self, recorder: Recorder, before: int | None, after: int | None
    ) -> None:
        write(recorder, 2, 3)
        change = recorder.see(before, after)
        assert recorder.changes == [change]

    def test_a_change_that_covers_an_own_deletion_and_a_foreign_creation_is_passed_on(
        self, recorder: Recorder
    ) -> None:
        write(recorder, 1, None)
        change = recorder.see(1, 9)
        assert recorder.changes == [change]

    def test_an_own_write_that_is_never_shown_hides_no_later_change(
        self, recorder: Recorder
    ) -> None:
        write(recorder, 2, 3)
        changes = [recorder.see(1, 5), recorder.see(5, 6)]
        assert recorder.changes == changes


class TestPendingWrites:
    """A change may be shown before its write is acknowledged."""

    def test_an_own_write_is_attributed_after_its_acknowledgement(self, recorder: Recorder) -> None:
        with recorder.own.writing("x"):
            recorder.see(None, 1)
            recorder.own.landed("x", writer="a", base=0, result=1)
        assert recorder.changes == []

    def test_changes_by_others_are_passed_on_after_the_acknowledgement(
        self, recorder: Recorder
    ) -> None:
        with recorder.own.writing("x"):
            before = recorder.see(None, 1)
            recorder.see(1, 2)
            after = recorder.see(2, 3)
            recorder.own.landed("x", writer="a", base=1, result=2)
            assert recorder.changes == []
        assert recorder.changes == [before, after]

    def test_changes_of_other_objects_are_not_delayed(self, recorder: Recorder) -> None:
        with recorder.own.writing("x"):
            other_change = recorder.see(None, 1, key="other")
            assert recorder.changes == [other_change]

    def test_a_failed_write_hides_no_change(self, recorder: Recorder) -> None:
        changes: list[Change[Thing]] = []

        def fail() -> None:
            with recorder.own.writing("x"):
                changes.append(recorder.see(None, 1))
                raise OSError("no")

        with pytest.raises(OSError, match="no"):
            fail()
        assert recorder.changes == changes

    def test_a_skipped_write_hides_no_change(self, recorder: Recorder) -> None:
        with recorder.own.writing("x"):
            theirs = recorder.see(None, 1)
        assert recorder.changes == [theirs]

    def test_changes_wait_until_both_concurrent_writers_are_done(self, recorder: Recorder) -> None:
        with recorder.own.writing("x"):
            with recorder.own.writing("x"):
                recorder.see(None, 1)
                recorder.see(1, 2)
                recorder.own.landed("x", writer="a", base=0, result=1)
            assert recorder.changes == []
            recorder.own.landed("x", writer="a", base=1, result=2)
        assert recorder.changes == []


class TestOverwrittenWrites:
    """Another write has replaced an own write whose change was never shown."""

    def test_the_writer_is_synced_again(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.own.landed("x", writer="b", base=0, result=3)
        recorder.see(None, 3)
        assert recorder.undone == ["a"]
        assert recorder.ours == ["b"]

    def test_the_writer_of_the_newest_state_is_not_synced_again(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        write(recorder, 0, 3)
        recorder.see(None, 3)
        assert recorder.undone == []

    def test_a_writer_whose_write_is_not_shown_yet_is_not_synced_again(
        self, recorder: Recorder
    ) -> None:
        recorder.own.landed("x", writer="b", base=1, result=2)
        write(recorder, 2, 3)
        recorder.see(1, 2)
        assert recorder.undone == []


class TestUndoneWrites:
    """An own write that a complete listing does not show was undone during a gap."""

    def test_the_writer_of_an_undone_write_is_notified(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.own.listed()
        assert recorder.undone == ["a"]

    def test_a_writer_is_notified_once_for_several_undone_writes(self, recorder: Recorder) -> None:
        for key in ("x", "y"):
            recorder.own.landed(key, writer="a", base=0, result=1)
        recorder.own.landed("x", writer="b", base=1, result=2)
        recorder.own.listed()
        assert sorted(recorder.undone) == ["a", "b"]

    def test_a_write_that_was_shown_is_not_undone(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.see(None, 1)
        recorder.own.listed()
        assert recorder.undone == []

    def test_a_second_listing_does_not_notify_again(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.own.listed()
        recorder.own.listed()
        assert recorder.undone == ["a"]

    def test_a_change_shown_after_its_write_was_undone_is_foreign(self, recorder: Recorder) -> None:
        write(recorder, 0, 1)
        recorder.own.listed()
        change = recorder.see(None, 1)
        assert (recorder.changes, recorder.ours) == ([change], [])

    def test_without_a_callback_an_undone_write_is_ignored(self) -> None:
        own = OwnWrites(lambda _change, _writer: None)
        own.landed("x", writer="a", base=0, result=1)
        own.listed()
