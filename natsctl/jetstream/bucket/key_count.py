"""Compares the number of keys that a watch has reported with the server's number."""

from natsctl.jetstream.bucket.bucket import StreamState


class KeyCount:
    """The numbers of reported keys at the revisions that the server may count at.

    Only two numbers at the same revision are comparable. Events arrive while the server counts, so
    its answer may be of an older or of a newer revision than the newest event. If it is newer, the
    comparison waits until the watch reaches that revision.

    `active` is true while numbers must be noted. `miscounted` is true if the server had another
    number of keys at a revision that was awaited.
    """

    def __init__(self) -> None:
        self.active = False
        self.miscounted = False
        self._counting = False  # whether the server counts
        self._sizes: list[tuple[int, int]] = []  # revisions, each with the number of keys from then
        self._awaited: StreamState | None = None  # an answer whose revision is not reached
        self._awaited_since = 0  # the revision of the watch at the time of the last answer

    def begin(self, revision: int, size: int) -> None:
        """Note that the server counts its keys now; the watch has *size* keys at *revision*."""
        self._counting = self.active = True
        self._sizes = [(revision, size)]

    def note(self, revision: int, size: int) -> None:
        """Note the number of keys after the event of this revision."""
        awaited = self._awaited
        if awaited is not None and revision > awaited.last_seq:
            self.miscounted = self._size_at(awaited.last_seq) != awaited.subjects
            self._awaited = None
        if not self._counting:
            self._sizes = [(revision, size)]
            self.active = self._awaited is not None
        elif size != self._sizes[-1][1]:
            self._sizes.append((revision, size))

    def differs(self, revision: int, size: int, counted: StreamState) -> bool:
        """Return whether the numbers differ, so that the keys must be compared.

        *counted* is the answer of the server. An awaited answer is not replaced, because a slow
        watch might never reach the next one. If no event arrived since the last answer, no event
        may ever reach the awaited revision.
        """
        self._counting = False
        if counted.last_seq < self._sizes[0][0]:
            return False  # the answer comes from a server that lags
        if counted.subjects == self._size_at(counted.last_seq):
            self.end()
            return False
        is_overdue = self._awaited is not None and self._awaited_since == revision
        if self.miscounted or is_overdue or counted.last_seq <= revision:
            return True
        self._awaited, self._awaited_since = self._awaited or counted, revision
        self._sizes = [(revision, size)]
        return False

    def end(self) -> None:
        """Await no answer: the numbers are equal, or the keys were compared."""
        self.active = self.miscounted = False
        self._awaited = None

    def _size_at(self, revision: int) -> int:
        """Return the number of keys at the revision, the newest one if it is not reached."""
        return next(size for since, size in reversed(self._sizes) if since <= revision)
