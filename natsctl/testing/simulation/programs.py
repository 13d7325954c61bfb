"""Runs a controller of any surface as the program of a process, and knows when it is idle."""

from collections.abc import Sequence

from natsctl.core.hosted import Hosted
from natsctl.daemon.operator import Guest
from natsctl.testing.simulation.world.process import life_of_task

QUIET_S = 20.0  # without a call or an event, after which broken watches are open again


class HostedProgram:
    """A controller in a host, as the program of a process."""

    def __init__(self, hosted: Hosted) -> None:
        self.hosted = hosted
        self.run = hosted.run
        self.stop = hosted.stop
        self.synced = hosted.synced

    @property
    def idle(self) -> bool:
        return self.hosted.idle and self.hosted.host.failure is None

    def resync(self) -> None:
        """Sync every key again, if the controller has begun to work."""
        if self.hosted.synced.is_set() and not self.hosted.host.stopping:
            self.hosted.resync()

    def requested_s(self, keys: Sequence[str]) -> float | None:
        """Return the seconds until the last time that a sync of these keys asked for, if any."""
        if not self.hosted.host.informers:
            return None
        places = (self.hosted.explain(key).queued for key in keys)
        return max(
            (place.s for place in places if place and place.place == "waiting"), default=None
        )

    @property
    def failed_syncs(self) -> int:
        """The number of failed syncs since the start."""
        return self.hosted.status().failures if self.hosted.host.informers else 0

    @property
    def failing(self) -> dict[str, str]:
        """The error of each key whose last sync failed."""
        return self.hosted.status().failing if self.hosted.host.informers else {}


class GuestProgram:
    """A class of a user with a `Resource` or a `DynamicWatcher`, as the program of a process."""

    def __init__(self, guest: Guest) -> None:
        self.run = guest.run
        self.stop = guest.stop
        self.synced = guest.synced
        self._life = life_of_task()

    @property
    def idle(self) -> bool:
        """See `Program.idle`; also, nothing has passed the network for a while."""
        return (
            self.synced.is_set()
            and all(queue.settled for queue in self._life.queues)
            and self._life.network.quiet_s() > QUIET_S
        )
