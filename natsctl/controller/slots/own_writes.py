"""Finds the changes that syncs of this controller made, and the keys of these syncs.

A change is an own write if it leads from the revision before the write to the revision after it. If
anything else had written in between, the revisions would differ. A change may arrive before its
write is acknowledged, so the changes of a key are held back while a write of the key is running.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from natsctl.model.store import Change


class _Step(msgspec.Struct, frozen=True, gc=False):
    """A write: its revision before (0 for none), and after (None for a deletion)."""

    base: int
    result: int | None

    @property
    def order(self) -> tuple[int, bool]:
        """The position among the writes of a key: a deletion follows its base revision."""
        return (self.base, True) if self.result is None else (self.result, False)


class _RunningWrites:
    """The writes of one key that have not ended, and the changes that are held back.

    Each write runs within `with`. After the last one, *ended* is called with the key.
    """

    def __init__(self, key: str, ended: Callable[[str], None]) -> None:
        self.held_back: list[Change[Any]] = []
        self._key = key
        self._ended = ended
        self._writers = 0

    def __enter__(self) -> None:
        self._writers += 1

    def __exit__(self, *_error: object) -> None:
        self._writers -= 1
        if self._writers == 0:
            self._ended(self._key)


class OwnWrites:
    """Forwards the changes of one store, each with the key whose sync made it, or None.

    If no change ever shows a write, the write was undone while the watch was broken, by a deletion
    or by a write of another sync. Then *undone* is called with the key whose sync wrote.
    """

    def __init__(
        self,
        forward: Callable[[Change[Any], str | None], None],
        undone: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._forward = forward
        self._undone = undone
        self._running: dict[str, _RunningWrites] = {}
        self._landed: dict[str, dict[_Step, str]] = {}  # unseen writes, with their keys

    def see(self, change: Change[Any]) -> None:
        """Forward a change, now or when the running writes of its key have ended."""
        running = self._running.get(change.key)
        if running is None:
            self._forward(change, self._writer(change))
        else:
            running.held_back.append(change)

    def writing(self, key: str) -> AbstractContextManager[None]:
        """Hold back changes of *key* until the write in the context has ended."""
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _RunningWrites(key, self._release)
        return running

    def landed(self, key: str, *, writer: str, base: int, result: int | None) -> None:
        """Record a write of *writer*'s sync, from revision *base* to *result*; see `_Step`."""
        self._landed.setdefault(key, {})[_Step(base, result)] = writer

    def listed(self) -> None:
        """Treat the writes that a complete list has not shown as undone.

        This includes a write that is newer than the list; its key is then synced once too often.
        """
        landed, self._landed = self._landed, {}
        for writer in {writer for steps in landed.values() for writer in steps.values()}:
            self._undone(writer)

    def _release(self, key: str) -> None:
        """Forward the changes of *key* that were held back."""
        for change in self._running.pop(key).held_back:
            self.see(change)

    def _writer(self, change: Change[Any]) -> str | None:
        landed = self._landed.pop(change.key, None)
        if landed is None:
            return None
        seen_step = _Step(
            0 if change.before is None else change.before.revision,
            None if change.after is None else change.after.revision,
        )
        later_steps = {
            step: writer for step, writer in landed.items() if step.order > seen_step.order
        }
        if later_steps:
            self._landed[change.key] = later_steps
        seen_writer = landed.get(seen_step)
        for writer in {writer for step, writer in landed.items() if step.order < seen_step.order}:
            if writer != seen_writer:
                self._undone(writer)
        return seen_writer
