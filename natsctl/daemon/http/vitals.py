"""What a process says when it is asked how it is."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Protocol, runtime_checkable

import msgspec

from natsctl.core.coordination.election import ElectionState
from natsctl.core.coordination.sharding import ShardState
from natsctl.core.insight.measures import CacheMeasures, Measures
from natsctl.daemon.http.metrics import Scrape, families
from natsctl.daemon.observe.watchdog import Watchdog
from natsctl.daemon.operator import Runnable
from natsctl.jetstream.connection.connection import ConnectionState
from natsctl.telemetry.hiding import hidden
from natsctl.telemetry.metrics import exposition


class Check(msgspec.Struct, frozen=True):
    """One aspect of a process's health; `failure` is the reason it fails, empty if it passes."""

    name: str
    failure: str = ""

    def __str__(self) -> str:
        reason = " ".join(hidden(self.failure).split())  # one line
        return f"[-]{self.name} failed: {reason}" if self.failure else f"[+]{self.name} ok"


class Verdict(msgspec.Struct, frozen=True):
    """The result of all checks behind one endpoint, such as `readyz`."""

    question: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if no check fails."""
        return not any(check.failure for check in self.checks)

    def text(self, *, verbose: bool = False) -> str:
        """Return `ok`, or a line for each check if one fails or if *verbose*.

        The form is that of a kube-apiserver.
        """
        if self.passed and not verbose:
            return "ok"
        end = f"{self.question} check {'passed' if self.passed else 'failed'}\n"
        return "\n".join((*map(str, self.checks), end))


class Connected(Protocol):
    """A connection that says how it is; a `natsctl.jetstream.connection.connection.Connection`."""

    @property
    def reconnects(self) -> bool:
        """Whether it comes back by itself when it is lost."""
        ...

    def state(self) -> ConnectionState:
        """Return how it is now."""
        ...


class Contested(Protocol):
    """An election that says how it stands; a `natsctl.core.coordination.election.Election`."""

    def state(self) -> ElectionState:
        """Return how it stands now."""
        ...


class Grouped(Protocol):
    """A member of a group that says how it stands; a `natsctl.core.coordination.sharding.Shard`."""

    def state(self) -> ShardState:
        """Return how it stands now."""
        ...


class Requested(Protocol):
    """A cluster that counts what it is sent; a `natsctl.kubernetes.cluster.Kube`."""

    def requests(self) -> Mapping[tuple[str, ...], int]:
        """Return how many requests were sent, by status, method and host."""
        ...


@runtime_checkable
class Measured(Protocol):
    """What measures what it does; a `ControllerRuntime` is one."""

    def measures(self) -> Measures:
        """Return what it measured so far."""
        ...

    async def lags(self) -> dict[str, int]:
        """Return by how many revisions its caches are behind, by slot; within a second."""
        ...


class Vitals:
    """Answers for a process, from before it is connected until after it is not any more."""

    def __init__(self) -> None:
        self.watchdog = Watchdog()  # of the event loop that answers
        self._connection: Connected | None = None
        self._runtimes: Sequence[Runnable] = ()
        self._elections: Sequence[Contested] = ()
        self._cluster: Requested | None = None
        self._shards: Sequence[Grouped] = ()
        self._stopping = False

    def stop(self) -> None:
        """Say from now on that this process is not ready: it was told to stop."""
        self._stopping = True

    @contextmanager
    def of(
        self,
        connection: Connected,
        runtimes: Sequence[Runnable],
        elections: Sequence[Contested] = (),
        cluster: Requested | None = None,
        shards: Sequence[Grouped] = (),
    ) -> Iterator[None]:
        """Answer for these while the context lasts."""
        self._connection, self._runtimes = connection, runtimes
        self._elections, self._cluster, self._shards = elections, cluster, shards
        try:
            yield
        finally:
            self._connection, self._cluster = None, None
            self._runtimes, self._elections, self._shards = (), (), ()

    def live(self) -> Verdict:
        """Say whether this process can do its work, now or once others are back.

        Where not, only another process can. That this is answered shows that the loop goes round.
        """
        connection = self._connection
        reconnects = connection is None or connection.reconnects
        failure = "" if reconnects else "it was given up, and does not come back"
        return Verdict("livez", (Check("ping"), Check("nats", failure)))

    def ready(self) -> Verdict:
        """Say whether this process does its work, or could at once if it came to lead.

        That is so while the connection stands, every cache is complete and has a watch, and it is
        known who leads, or who shares the keys, until it is told to stop.
        """
        stopping = [Check("shutdown", "stopping")] if self._stopping else []
        controllers = [check for runtime in self._runtimes for check in _checks(runtime)]
        if not controllers:
            controllers = [Check("controllers", "none is started yet, or all have ended")]
        shared = (*self._lease_checks(), *self._shard_checks())
        return Verdict("readyz", (*stopping, self._connection_check(), *shared, *controllers))

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type, which *accept* chooses.

        Takes a second and a bit at most, for stores that do not say how far they are.
        """
        measured = {at.name: at for at in self._runtimes if isinstance(at, Measured)}
        lags = await asyncio.gather(*(at.lags() for at in measured.values()))
        connection = self._connection
        scrape = Scrape(
            measures=[at.measures() for at in measured.values()],
            lags=dict(zip(measured, lags, strict=True)),
            connection=None if connection is None else connection.state(),
            elections=[election.state() for election in self._elections],
            shards=[shard.state() for shard in self._shards],
            requests={} if self._cluster is None else self._cluster.requests(),
            stalls=self.watchdog.stalls,
            version=version("natsctl"),
        )
        return exposition(families(scrape), accept)

    def _connection_check(self) -> Check:
        if self._connection is None:
            return Check("nats", "there is no connection yet, or no more")
        state = self._connection.state()
        if state.connected:
            return Check("nats")
        return Check("nats", f"not connected to {state.server}: {state.last_error}")

    def _lease_checks(self) -> list[Check]:
        states = [election.state() for election in self._elections]
        unknown = "it could not be read or written, or nobody has tried yet"
        return [Check(f"lease/{state.name}", "" if state.known else unknown) for state in states]

    def _shard_checks(self) -> list[Check]:
        states = [shard.state() for shard in self._shards]
        return [Check(f"shard/{state.name}", _unshared(state)) for state in states]


def _checks(runtime: Runnable) -> list[Check]:
    """Look at a controller, and at each of its caches."""
    name = f"controller/{runtime.name}"
    if not isinstance(runtime, Measured):
        return [Check(name, "" if runtime.synced.is_set() else "it has not begun its work yet")]
    caches = runtime.measures().caches
    opened = Check(name, "" if caches else "it has not opened its stores yet")
    return [opened, *(Check(f"cache/{runtime.name}/{at.slot}", _failure(at)) for at in caches)]


def _unshared(state: ShardState) -> str:
    if not state.known:
        return "this member's record could not be written, or nobody has tried yet"
    return "" if state.works else "it has not joined the others yet"


def _failure(cache: CacheMeasures) -> str:
    if cache.failure:
        return cache.failure
    return "" if cache.complete else f"{cache.kind} has not been listed completely yet"
