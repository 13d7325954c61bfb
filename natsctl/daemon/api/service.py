"""What can be asked of a daemon over NATS, and how it answers.

There is an endpoint for each controller and verb, `natsctl.api.VERB.CONTROLLER`. Who may ask what
is NATS permissions on these subjects.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib.metadata import version as installed
from types import MappingProxyType
from typing import TypeVar

import msgspec

from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots.declare import slots
from natsctl.core.coordination.election import Election
from natsctl.core.coordination.lease import Workload
from natsctl.core.coordination.sharding import Shard
from natsctl.core.insight.explain import Accountable
from natsctl.core.objects.primary import Primary, Tertiary
from natsctl.daemon.api.external_tree import externals
from natsctl.daemon.api.messages import (
    BRANCHES_MAX,
    ORPHANS_MAX,
    OWNED_MAX,
    SHOWN_MAX,
    ControllerPlan,
    ControllerStatus,
    Event,
    KeyExplanation,
    Process,
    Queuing,
    begun,
    cut,
    explained,
    fitting,
    pruned,
    some,
    status_of,
)
from natsctl.daemon.api.mode import mode_of, trouble_of, way_of
from natsctl.daemon.api.peers import Peers, Presence
from natsctl.daemon.api.tree_ages import dated
from natsctl.daemon.api.verbs import NAME, Verb
from natsctl.daemon.operator import Runnable, owner_of
from natsctl.errors import DECODE_ERRORS, NatsctlError, UsageError
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.events.read import events_of
from natsctl.jetstream.service.server import Endpoint, Handler, Identity, serving
from natsctl.model.keys import check_key
from natsctl.telemetry.hiding import hidden

log = logging.getLogger(__name__)

KEYS_MAX = 10_000  # in one request
LOOK_S = 0.5  # how often it is looked who leads

R = TypeVar("R", bound=Accountable)

NO_SHARDS: Mapping[str, Shard] = MappingProxyType({})
NO_ELECTIONS: Mapping[str, Election] = MappingProxyType({})

Leads = Callable[[str], bool]
"""Says whether this process leads the controller of that name now."""


class Desk:
    """Answers for one controller of this process."""

    def __init__(
        self,
        runtime: Runnable,
        daemon: Process,
        connection: Connection,
        leads: Leads,
        *,
        shard: Shard | None = None,
        election: Election | None = None,
    ) -> None:
        self._runnable = runtime
        self._shard = shard
        self._election = election
        self.peers = Peers(
            runtime.name,
            Presence(daemon=daemon, mode=way_of(election, shard), work=Workload(owner_of(runtime))),
            Verb.STATUS.subject(runtime.name),
        )
        self._daemon = daemon
        self._connection = connection
        self._leads = leads
        handlers: dict[Verb, Handler] = {Verb.STATUS: self._status}
        if isinstance(runtime, Accountable):
            self._runtime = runtime
            handlers |= {
                Verb.EXPLAIN: self._explain,
                Verb.TREE: self._tree,
                Verb.RESYNC: self._resync,
            }
        if isinstance(runtime, ControllerRuntime) and _has_secondaries(runtime):
            self._collecting = runtime
            handlers |= {
                Verb.GC_PLAN: self._plan,
                Verb.GC_APPLY: self._apply,
                Verb.GC_ACCEPT: self._accept,
            }
        self._endpoints = {verb: self._endpoint(verb, each) for verb, each in handlers.items()}

    def endpoints(self) -> Iterator[Endpoint]:
        """Return what can be asked now."""
        leads = self._leads(self._runnable.name) and not self._stopping
        for verb, endpoint in self._endpoints.items():
            if leads or not verb.acts:
                yield endpoint

    def _endpoint(self, verb: Verb, handler: Handler) -> Endpoint:
        controller = self._runnable.name
        return Endpoint(
            name=verb.replace(".", "-"),
            subject=verb.subject(controller),
            handler=handler,
            group=verb.group(shared=self._shard is not None),
            metadata={"controller": controller, "verb": verb},
        )

    # ---- what is told

    async def _status(self, asked: bytes) -> bytes:
        met = self.peers.meet(asked)
        return met if met is not None else fitting(self._limit, SHOWN_MAX, self.status)

    def status(self, shown: int = SHOWN_MAX) -> ControllerStatus:
        """Return how the controller is doing, as far as that can be told by now."""
        runnable, state = self._runnable, self._state()
        mode = mode_of(self._election, self._shard)
        members = [] if self._shard is None else list(self._shard.state().members)
        trouble = hidden(trouble_of(self._election, self._shard))
        if not isinstance(runnable, Accountable) or not runnable.prepared:
            return ControllerStatus(
                controller=runnable.name,
                daemon=self._daemon,
                state=state,
                members=members,
                mode=mode,
                trouble=trouble,
            )
        failure = "" if runnable.failure is None else hidden(str(runnable.failure))
        found = runnable.status()
        told = status_of(found, self._daemon, state=state, failure=failure, shown=shown)
        told = msgspec.structs.replace(told, members=members, mode=mode, trouble=trouble)
        if not isinstance(runnable, ControllerRuntime) or runnable.installation is None:
            return told
        return msgspec.structs.replace(
            told,
            installation=runnable.installation.id,
            garbage_held=cut(hidden(runnable.garbage_held)),
        )

    def _state(self) -> str:
        if self._stopping:
            return "stopping"
        if not self._leads(self._runnable.name):
            return "standby" if self._shard is None else "joining"
        if self._runnable.synced.is_set():
            return "syncing"
        prepared = isinstance(self._runnable, Accountable) and self._runnable.prepared
        return "listing" if prepared else "starting"

    @property
    def _stopping(self) -> bool:
        return isinstance(self._runnable, Accountable) and self._runnable.stopping

    @property
    def _limit(self) -> int:
        return self._connection.payload_max

    async def _explain(self, asked: bytes) -> bytes:
        key, runtime = _key(asked), self._prepared(self._runtime)
        now = asyncio.get_running_loop().time()
        known = explained(runtime.explain(key), self._runnable.name, self._daemon, now=now)
        if self._shard is not None:
            member = self._shard.whose(key) or ""
            known = msgspec.structs.replace(known, member=member, here=runtime.holds(key))
        if (
            isinstance(runtime, ControllerRuntime)
            and not known.exists
            and any(known.owned.values())
        ):
            held = cut(hidden(runtime.garbage_held))
            known = msgspec.structs.replace(known, garbage_held=held)
        told = await self._with_events(known)
        return fitting(self._limit, OWNED_MAX, lambda count: begun(told, count))

    async def _with_events(self, known: KeyExplanation) -> KeyExplanation:
        try:
            told = await events_of(self._connection, known.controller, known.key)
        except NatsctlError as error:
            return msgspec.structs.replace(known, events_error=hidden(str(error)))
        events = [
            Event(
                type=each.type,
                reason=each.reason,
                message=each.message,
                first=each.first_timestamp,
                last=each.last_timestamp,
                count=each.count,
            )
            for each in told
        ]
        return msgspec.structs.replace(known, events=events)

    async def _tree(self, asked: bytes) -> bytes:
        found = self._prepared(self._runtime).tree(_key(asked), externals)
        top = await dated(self._connection, pruned(found, BRANCHES_MAX))
        more = found.branches[BRANCHES_MAX:]
        whole = msgspec.structs.replace(top, branches=(*top.branches, *more))
        return fitting(self._limit, BRANCHES_MAX, lambda count: pruned(whole, count))

    # ---- what is done

    async def _resync(self, asked: bytes) -> bytes:
        keys, runtime = _keys(asked), self._acting(self._runtime)
        if not keys:
            return self._queuing(runtime.resync())
        wanted, unknown, elsewhere = list[str](), list[str](), list[str]()
        invalid: dict[str, str] = {}
        for known in map(runtime.explain, keys):
            if known.invalid:
                invalid[known.key] = known.invalid
            elif not (known.exists or any(known.owned.values()) or known.failures):
                unknown.append(known.key)
            elif not runtime.holds(known.key):
                elsewhere.append(known.key)
            else:
                wanted.append(known.key)
        if wanted:
            runtime.resync(*wanted)
        return self._queuing(len(wanted), unknown, elsewhere, invalid)

    def _queuing(
        self,
        queued: int,
        unknown: Sequence[str] = (),
        elsewhere: Sequence[str] = (),
        invalid: Mapping[str, str] | None = None,
    ) -> bytes:
        why = invalid or {}
        return fitting(
            self._limit,
            SHOWN_MAX,
            lambda count: Queuing(
                controller=self._runnable.name,
                daemon=self._daemon,
                queued=queued,
                unknown=list(unknown),
                elsewhere=list(elsewhere),
                invalid=some(why, count),
                invalid_count=len(why),
            ),
        )

    async def _plan(self, _asked: bytes) -> bytes:
        runtime = self._acting(self._collecting)
        found = await runtime.garbage_plan(at_once=True, orphans_max=ORPHANS_MAX)
        return fitting(self._limit, ORPHANS_MAX, ControllerPlan.of(found, runtime.name).begun)

    async def _apply(self, asked: bytes) -> bytes:
        plan, runtime = self._planned(asked), self._acting(self._collecting)
        removed = await runtime.garbage_apply(plan)
        log.info("%s: a person removed %d orphans", plan.controller, len(removed.orphans))
        return msgspec.json.encode(removed)

    async def _accept(self, asked: bytes) -> bytes:
        """Accept the bucket for the reason that the plan shows, and for no other."""
        seen, runtime = self._planned(asked), self._acting(self._collecting)
        held = runtime.garbage_held
        if held and held != seen.refused:
            raise UsageError(
                f"garbage collection of {runtime.name} is held for another reason than the plan "
                f"shows: {held}; look at {Verb.GC_PLAN} again"
            )
        plan = await runtime.garbage_accept()
        log.info("%s: a person accepted the bucket of primaries: %s", runtime.name, held or "-")
        return fitting(self._limit, ORPHANS_MAX, ControllerPlan.of(plan, runtime.name).begun)

    def _planned(self, asked: bytes) -> ControllerPlan:
        """Return the plan that a request carries; an act without the plan is refused."""
        try:
            plan = msgspec.json.decode(asked, type=ControllerPlan)
        except DECODE_ERRORS as error:
            raise UsageError(f"send what {Verb.GC_PLAN} answers: {error}") from error
        if plan.controller != self._runnable.name:
            raise UsageError(f"this is a plan of {plan.controller}, not of {self._runnable.name}")
        return plan

    def _prepared(self, runtime: R) -> R:
        if not runtime.prepared:
            raise NatsctlError(f"{self._runnable.name} is starting: ask again")
        return runtime

    def _acting(self, runtime: R) -> R:
        """Return it, where it would do what is asked; what was told to stop begins nothing."""
        if runtime.stopping:
            raise NatsctlError(f"{self._runnable.name} is stopping: ask again")
        return self._prepared(runtime)


def this_process() -> Process:
    """Return this process, with a new id."""
    return Process(
        id=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=installed("natsctl"),
        started=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
    )


def identity_of(daemon: Process) -> Identity:
    """Return what the process calls itself as a micro service."""
    return Identity(
        name=NAME,
        version=daemon.version,
        description="keeps everything equal to the desired state in NATS JetStream KV",
        metadata={"host": daemon.host, "pid": str(daemon.pid)},
        id=daemon.id,
    )


@asynccontextmanager
async def answering(
    connection: Connection,
    runtimes: Sequence[Runnable],
    *,
    leads: Leads = lambda _: True,
    shards: Mapping[str, Shard] = NO_SHARDS,
    elections: Mapping[str, Election] = NO_ELECTIONS,
    daemon: Process | None = None,
) -> AsyncIterator[None]:
    """Answer for these, as the micro service `natsctl`, for as long as the context lasts.

    *leads* returns whether this process acts for a controller; *shards* is its part in those whose
    keys it shares with others, and *elections* in those of which a leader is elected, by name;
    *daemon* is this process, by default one with a new id. Other daemons that run the same
    controllers are looked for, see `peers`.
    """
    daemon = this_process() if daemon is None else daemon
    identity = identity_of(daemon)
    desks = [
        Desk(
            at,
            daemon,
            connection,
            leads,
            shard=shards.get(at.name),
            election=elections.get(at.name),
        )
        for at in runtimes
    ]
    async with serving(connection, identity) as service:
        offering = _keep_offering(desks, service.offer)
        tasks = [asyncio.create_task(offering, name="what can be asked")]
        for desk in desks:
            watch = desk.peers.watch(connection)
            tasks.append(asyncio.create_task(watch, name="other daemons"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def _keep_offering(
    desks: Sequence[Desk], offer: Callable[[Sequence[Endpoint]], None]
) -> None:
    offered: list[Endpoint] | None = None
    while True:
        wanted = [endpoint for desk in desks for endpoint in desk.endpoints()]
        if wanted != offered:
            offer(wanted)
            offered = wanted
        await asyncio.sleep(LOOK_S)


def _has_secondaries(runtime: ControllerRuntime) -> bool:
    """Say whether the controller makes secondaries, of which there can be garbage."""
    declared = slots(type(runtime.controller))
    return any(slot.role not in (Primary, Tertiary) for slot in declared)


def _key(asked: bytes) -> str:
    keys = _keys(asked)
    if len(keys) != 1:
        raise UsageError("send one key, as it is")
    return keys[0]


def _keys(asked: bytes) -> list[str]:
    """Return the keys, which are separated by spaces, each once."""
    try:
        keys = asked.decode().split(maxsplit=KEYS_MAX)
    except UnicodeDecodeError as error:
        raise UsageError("keys are text") from error
    if len(keys) > KEYS_MAX:
        raise UsageError(f"send {KEYS_MAX} keys at a time, or none for all")
    return [check_key(key) for key in dict.fromkeys(keys)]
