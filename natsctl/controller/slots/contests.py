"""Decides when an object is applied again if other writers keep undoing the apply.

Otherwise, two writers that force the same field would undo each other as fast as the server can.
If an apply of the same manifest changes the object shortly after the last apply, other writers have
undone that apply. The wait before the next apply doubles each time, as it does for a failing key.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from natsctl.core.retry import backoff
from natsctl.model.managed_fields import LostField
from natsctl.telemetry.hiding import enumerated

BASE_S, LIMIT_S = 0.005, 1000.0  # of the wait, as for a failing key
CONTESTED = 3  # applies that are undone in a row before they are reported
CALM_S = 600.0  # an applied state that lasts this long after its wait ends the contest
REMEMBERED_MAX = 10_000  # objects: those that were applied last
FIELDS_MAX = 5  # that a text names


class Contest(msgspec.Struct, frozen=True):
    """The last apply to an object of the primary `owner`, and how often it was undone in a row.

    `lost` are the fields that other writers changed the last time.
    """

    owner: str
    digest: str
    applied_at: float
    undone: int = 0
    wait_s: float = 0.0
    lost: tuple[LostField, ...] = ()

    @property
    def contested(self) -> bool:
        """True if the object was undone often enough to be reported."""
        return self.undone >= CONTESTED

    @property
    def fact(self) -> str:
        """A text without the count, so that repeated events can be aggregated."""
        return (
            f"{self._rivals} changes {self._fields} back again and again; each apply waits longer"
        )

    def __str__(self) -> str:
        return (
            f"{self._rivals} changed {self._fields} back {self.undone} times in a row; "
            f"after the last apply the next one waits {self.wait_s:.3g} s"
        )

    @property
    def _rivals(self) -> str:
        managers = dict.fromkeys(name for field in self.lost for name in field.managers)
        return ", ".join(f'"{name}"' for name in managers) or "another writer"

    @property
    def _fields(self) -> str:
        paths = [field.path for field in self.lost]
        return enumerated(paths, FIELDS_MAX) if paths else "it"


class Contests:
    """Remembers the last applies to the objects of one kind; *clock* is the loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.undone = 0  # the number of applies that other writers undid
        self._clock = clock
        self._last: OrderedDict[str, Contest] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        """Return whether an apply to the object is remembered."""
        return key in self._last

    def wait_s(self, key: str, digest: str) -> float:
        """Return the seconds until the manifest with this digest may be applied to the object."""
        last = self._last.get(key)
        if last is None or last.digest != digest:
            return 0.0
        return max(0.0, last.applied_at + last.wait_s - self._clock())

    def created(self, key: str, owner: str, digest: str) -> None:
        """Record that the object was created, which undoes no other writer's fields.

        Somebody may delete it as often as they like: an evicted Pod, a Job with a time to live.
        """
        self._remember(key, Contest(owner, digest, self._clock()))

    def applied(
        self, key: str, owner: str, digest: str, lost: Sequence[LostField] = ()
    ) -> Contest | None:
        """Record an apply to an existing object; return its contest if it must be reported."""
        now, last = self._clock(), self._last.get(key)
        contest = Contest(owner, digest, now)
        if last is not None and last.digest == digest and now <= _calm_at(last):
            self.undone += 1
            undone = last.undone + 1
            wait_s = backoff(undone, base_s=BASE_S, limit_s=LIMIT_S)
            contest = Contest(owner, digest, now, undone, wait_s, tuple(lost) or last.lost)
        self._remember(key, contest)
        return contest if contest.contested else None

    def forget(self, key: str) -> None:
        """Forget an object that this controller deleted."""
        self._last.pop(key, None)

    def current(self) -> dict[str, Contest]:
        """Return the current contests, by the key of the object."""
        now = self._clock()
        return {
            key: last
            for key, last in self._last.items()
            if last.contested and now <= _calm_at(last)
        }

    def _remember(self, key: str, contest: Contest) -> None:
        self._last[key] = contest
        self._last.move_to_end(key)
        if len(self._last) > REMEMBERED_MAX:
            self._last.popitem(last=False)


def _calm_at(contest: Contest) -> float:
    return contest.applied_at + contest.wait_s + CALM_S
