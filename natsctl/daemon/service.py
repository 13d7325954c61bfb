"""Serves a daemon's controllers over NATS, as the micro service `natsctl`.

Each controller and verb has an endpoint, `natsctl.api.VERB.CONTROLLER`. NATS permissions on these
subjects decide who may send which request.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version as installed
from types import MappingProxyType
from typing import TypeVar

import msgspec
from msgspec.structs import asdict, replace

from natsctl.controller.runtime import ControllerRuntime
from natsctl.controller.slots import makes_secondaries
from natsctl.core.coordination.lease import NO_CLUSTERS
from natsctl.core.coordination.shares import Participation, ShareState
from natsctl.core.hosted import Hosted
from natsctl.core.reports import mask_errors
from natsctl.daemon.messages import (
    DAEMONS_SHOWN,
    NAME,
    ORPHANS_MAX,
    OWNED_MAX,
    SHOWN_MAX,
    STOP,
    ControllerPlan,
    ControllerStatus,
    DaemonProcess,
    KeyEvent,
    KeyExplanation,
    KeyPlans,
    Manifest,
    Mode,
    ObjectName,
    Queuing,
    Recorded,
    RecordingPart,
    Verb,
    conflict,
    first_orphans,
    fitting,
    with_past,
)
from natsctl.daemon.operator import Runnable, owner_of
from natsctl.daemon.plan import Planner
from natsctl.errors import (
    DECODE_ERRORS,
    NatsctlError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    UsageError,
)
from natsctl.jetstream.bucket import Bucket
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.events import events_of
from natsctl.jetstream.service import Endpoint, Handler, ServiceIdentity, ask_all, serving
from natsctl.managed.links import CREATE_PENDING, AnnotationNames, CreationLink, Mark
from natsctl.model import documents
from natsctl.model.documents import Document
from natsctl.model.keys import check_keys
from natsctl.model.masking import masked_manifest
from natsctl.model.plans import GarbagePlan
from natsctl.model.readiness import ready, reason
from natsctl.model.reports import Branch, Status
from natsctl.model.times import time_text
from natsctl.slices import Slices
from natsctl.telemetry.hiding import enumerated, hidden
from natsctl.telemetry.logger import get_logger
from natsctl.time_limit import happens

T = TypeVar("T")

KEYS_MAX = 10_000  # in one request
BRANCHES_MAX = 5_000
ACTIONS_MAX = 1_000  # of each key in a plan
DATED_MAX = 100  # objects of a tree whose times are read
RECORDED_MAX = 1_000  # keys that a controller records at a time
JSON_IN_JSON = 3  # JSON in JSON takes at most so many times its length
EVERY_S = 60.0  # between introductions, times the number of daemons, so the traffic doesn't grow
SOON_S = 0.5  # until the next attempt while this daemon's own service doesn't answer
ANSWER_S = 2.0
PEERS_MAX = 100
CHECK_S = 0.5  # the interval at which changes of the endpoints are noticed
NO_PARTICIPATIONS: Mapping[str, Participation] = MappingProxyType({})

log = get_logger(__name__)

_LINKS = ("external-name", CREATE_PENDING)


def externals(document: Document) -> Iterator[Branch]:
    """Return the external resources that a managed object's annotations name, in any domain.

    If its creation began and no result was recorded, it's unknown whether one is ready.
    """
    texts = documents.annotations_of(document).items()
    annotations = {name: text for name, text in texts if isinstance(text, str)}
    domains = {key.rpartition("/")[0] for key in annotations if key.rpartition("/")[2] in _LINKS}
    for names in map(AnnotationNames, sorted(domains)):
        link = CreationLink.of(annotations, names)
        why = "CreationUnknown" if link.unknown else reason(document)
        if link.adopted and why in ("", "Available"):
            why = "Adopted"
        yield Branch(
            kind="External",
            key=annotations.get(names.external_name) or "(unnamed)",
            ready="Unknown" if link.unknown else ready(document),
            reason=why,
            created=Mark.parse(link.succeeded).time.isoformat() if link.succeeded else "",
        )


async def dated(connection: Connection, top: Branch) -> Branch:
    """Return the tree with the times of objects in NATS, read from the leaders of their buckets.

    At most `DATED_MAX` objects get a time. A time stays empty if the leader doesn't answer.
    """
    times: dict[tuple[str, int], str] = {}
    stored = [
        branch for branch in (top, *top.branches[:DATED_MAX]) if branch.bucket and branch.revision
    ]
    for bucket in {branch.bucket for branch in stored}:
        keys = [branch.key for branch in stored if branch.bucket == bucket]
        try:
            messages = await Bucket(connection, bucket).newest(keys)
        except StoreError as error:
            log.debug("cannot read the times of objects", bucket=bucket, error=error)
        else:
            times |= {(bucket, message.revision): message.created for message in messages}

    def with_times(branch: Branch) -> Branch:
        created = times.get((branch.bucket, branch.revision or 0), branch.created)
        return replace(branch, created=created, branches=tuple(map(with_times, branch.branches)))

    return with_times(top)


class Peers:
    """Finds other daemons that run the same controller, and warns of a `conflict` with them.

    A daemon introduces itself to the others, by the short status *own*, when it starts, after every
    reconnect, and at long intervals. If it may not publish to the subject of `natsctl status`, the
    others still warn.
    """

    def __init__(self, own: ControllerStatus) -> None:
        self._own = own
        self._introduction = msgspec.json.encode(own)
        self._others: dict[str, ControllerStatus] = {}
        self._conflict = ""
        self._lost = asyncio.Event()

    def meet(self, request: bytes) -> bytes | None:
        """Return the answer to an introduction; None if the request is none."""
        status = _introduced(request) if request else None
        if status is None:
            return None
        if len(self._others) < PEERS_MAX or status.daemon.id in self._others:
            self._update([*self._others.values(), status])
        return self._introduction

    async def watch(self, connection: Connection) -> None:
        name = self._own.controller
        subject = Verb.STATUS.subject(name)
        with connection.on_lost(lambda _: self._lost.set()):
            while True:
                self._lost.clear()
                try:
                    await connection.wait_connected()
                    answers = await ask_all(
                        connection, subject, self._introduction, timeout_s=ANSWER_S
                    )
                    present = [_introduced(one.data) for one in answers if one.error is None]
                    answered = self._update(present[: PEERS_MAX + 1])
                except PermissionDeniedError as error:
                    log.info("cannot look for other daemons", controller=name, error=error)
                    return
                except StoreError as error:
                    log.debug("no daemon answers", controller=name, error=error)
                    answered = False
                pause_s = EVERY_S * (1 + len(self._others)) if answered else SOON_S
                await happens(self._lost, within_s=pause_s)

    def _update(self, present: Iterable[ControllerStatus | None]) -> bool:
        """Know these daemons from now on; return whether this one is among them."""
        peers = {peer.daemon.id: peer for peer in present if peer is not None}
        answered = peers.pop(self._own.daemon.id, None) is not None
        self._others = peers
        found, name = conflict([self._own, *peers.values()]), self._own.controller
        if found and found != self._conflict:
            names = enumerated(sorted(str(peer.daemon) for peer in peers.values()), DAEMONS_SHOWN)
            log.warning("daemons are in conflict", controller=name, reason=found, daemons=names)
        elif self._conflict and not found:
            log.info("no other daemon is in conflict any more", controller=name)
        self._conflict = found
        return answered


def _introduced(text: bytes) -> ControllerStatus | None:
    try:
        return msgspec.json.decode(text, type=ControllerStatus)
    except DECODE_ERRORS:
        return None


class ControllerEndpoints:
    """The endpoints of one controller of this process.

    It answers `status`; a `Hosted` one answers `explain`, `tree`, `resync` and the verbs about
    recordings too, one that makes secondaries also the verbs about garbage. Without a *planner*,
    this process plans no keys on request. With *dry_run*, the controller only plans, and answers
    only `status` and `explain`. `cluster` is the identity of its cluster, if that's known.
    """

    def __init__(
        self,
        runnable: Runnable,
        daemon: DaemonProcess,
        connection: Connection,
        *,
        participation: Participation | None = None,
        planner: Planner | None = None,
        dry_run: bool = False,
        cluster: str = "",
    ) -> None:
        self._hosted = runnable if isinstance(runnable, Hosted) else None
        self._dry_run = dry_run
        self._runnable = runnable
        self._participation = participation
        shared = participation is not None and participation.leadership.shared
        self._shard = participation if shared else None
        name = runnable.name
        self._mode = Mode.ALONE
        if dry_run:
            self._mode = Mode.DRY_RUN
        elif participation is not None:
            self._mode = Mode.SHARED if shared else Mode.ELECTED
        self._own = ControllerStatus(
            controller=name,
            daemon=daemon,
            mode=self._mode.value,
            owner=owner_of(runnable),
            cluster=cluster,
        )
        self.peers = Peers(self._own)
        self._daemon = daemon
        self._connection = connection
        handlers: dict[Verb, Handler] = {Verb.STATUS: self._status}
        if self._hosted is not None:
            handlers[Verb.EXPLAIN] = self._explain
        if self._hosted is not None and not dry_run:
            handlers |= {
                Verb.TREE: self._tree,
                Verb.MANIFEST: self._manifest,
                Verb.RESYNC: self._resync,
                Verb.RECORD: self._record,
                Verb.RECORDING: partial(self._recording, masked=True),
                Verb.RECORDING_UNMASKED: partial(self._recording, masked=False),
            }
            if planner is not None:
                handlers[Verb.PLAN] = partial(self._plan_keys, planner)
            if isinstance(runnable, ControllerRuntime) and makes_secondaries(
                type(runnable.controller)
            ):
                handlers |= {
                    Verb.GC_PLAN: partial(self._plan, runnable),
                    Verb.GC_APPLY: partial(self._apply, runnable),
                    Verb.GC_ACCEPT: partial(self._accept, runnable),
                }
        self._endpoints = {
            verb: Endpoint(
                name=verb.replace(".", "-"),
                subject=verb.subject(name),
                handler=handler,
                group=verb.group(shared=shared),
                metadata={"controller": name, "verb": verb},
            )
            for verb, handler in handlers.items()
        }

    def endpoints(self) -> Iterator[Endpoint]:
        leads = self._leads and not self._stopping
        for verb, endpoint in self._endpoints.items():
            if leads or not verb.acts:
                yield endpoint

    # ---- verbs that read

    def status(self) -> ControllerStatus:
        status = Status(controller=self._runnable.name)
        part = None if self._participation is None else self._participation.state()
        if self._hosted is not None and self._hosted.host.informers:
            status = self._hosted.status()
        if self._dry_run:  # a plan may have another id
            status = replace(status, installation="")
        return replace(
            ControllerStatus.of(status, self._daemon),
            state=self._state(),
            members=[] if self._shard is None or part is None else list(part.members),
            shares=0 if part is None else part.shares.get(part.identity, 0),
            draining=0 if part is None else part.draining,
            draining_s=0.0 if part is None else part.draining_s,
            mode=self._part_in_mode(part),
            owner=self._own.owner,
            cluster=self._own.cluster,
            trouble="" if part is None else hidden(part.trouble),
        )

    def _part_in_mode(self, part: ShareState | None) -> str:
        """Return the mode and the daemon's present part in it, as `natsctl status` shows them."""
        if part is None or self._mode is Mode.DRY_RUN:
            return self._mode.value
        if self._mode is Mode.ELECTED:
            return "leader" if part.works else "standby"
        if part.identity not in part.members:
            return self._mode.value
        number = sorted(part.members).index(part.identity) + 1
        text = f"shard {number} of {len(part.members)}, {part.shares[part.identity]} shares"
        if part.draining:
            text += f", gives up {part.draining} for {part.draining_s:.0f} s"
        return text

    async def _status(self, request: bytes) -> bytes:
        introduction = self.peers.meet(request)
        if introduction is not None:
            return introduction
        if self._hosted is not None:
            await mask_errors(self._hosted.host)
        return self._fitting(SHOWN_MAX, self.status().limited)

    def _state(self) -> str:
        if self._stopping:
            return "stopping"
        if not self._leads:
            return "standby" if self._shard is None else "joining"
        if self._runnable.synced.is_set():
            return "syncing"
        return "listing" if self._hosted is not None and self._hosted.host.informers else "starting"

    @property
    def _leads(self) -> bool:
        return self._participation is None or self._participation.leadership.leads

    @property
    def _stopping(self) -> bool:
        return self._hosted is not None and self._hosted.host.stopping

    async def _explain(self, request: bytes) -> bytes:
        key, runtime = _key(request), self._started()
        plan = runtime.host.environment.plan
        planned = None if plan is None else plan.key_plan(key)
        answer = KeyExplanation(
            **asdict(runtime.explain(key)), daemon=self._daemon, planned=planned
        )
        if self._shard is not None:
            member, share, leaving_s = self._shard.whose(key)
            here = runtime.holds(key)
            answer = replace(answer, member=member, here=here, share=share, leaving_s=leaving_s)
        try:
            recorded = await events_of(self._connection, answer.controller, key)
        except NatsctlError as error:
            answer = replace(answer, events_error=hidden(str(error)))
        else:
            events = msgspec.convert(recorded, list[KeyEvent], from_attributes=True)
            answer = replace(answer, events=events, syncs=with_past(answer.syncs, recorded))
        return self._fitting(OWNED_MAX, answer.limited)

    async def _tree(self, request: bytes) -> bytes:
        tree = self._started().tree(_key(request), externals)
        return self._fitting(BRANCHES_MAX, (await dated(self._connection, tree)).limited)

    async def _manifest(self, request: bytes) -> bytes:
        wanted = _decoded(request, ObjectName, "the kind and the key of an object")
        for informer in self._started().host.informers.values():
            table = informer.table
            stored = table.newest(wanted.key) if table.kind.name == wanted.kind else None
            if stored is not None and stored.value:
                break
        else:
            raise NotFoundError(f"{self._runnable.name} knows no {wanted.kind}/{wanted.key}")
        text = masked_manifest(wanted.kind, stored.value)
        return self._fitting(len(text), lambda count: Manifest(text[:count]))

    async def _plan_keys(self, planner: Planner, request: bytes) -> bytes:
        keys, runtime = _keys(request), self._running()
        plan = await planner.plan(runtime, keys)
        return self._fitting(ACTIONS_MAX, KeyPlans(**asdict(plan), daemon=self._daemon).limited)

    async def _recording(self, request: bytes, *, masked: bool) -> bytes:
        runtime, (text_of_key, _, number) = self._started(), request.partition(b" ")
        key = _key(text_of_key)
        if number and not number.isdigit():
            raise UsageError("send one key as plain text, and perhaps the number of a part")
        recording = runtime.recording(key, masked=masked)
        if recording is None:
            raise NotFoundError(
                f"{runtime.name} has no recording of {key}: no sync of it has failed in this "
                "process, or newer recordings have replaced it; natsctl replay --record records "
                "every sync"
            )
        part, text = int(number or 0), recording.to_json().decode()
        size = self._connection.payload_max // JSON_IN_JSON
        answer = RecordingPart(
            daemon=self._daemon,
            started=recording.started.isoformat(),
            part=part,
            parts=-(-len(text) // size),
            text=text[part * size : (part + 1) * size],
        )
        return msgspec.json.encode(answer)

    # ---- verbs that act

    async def _record(self, request: bytes) -> bytes:
        """Record the syncs of keys, or only failed ones again if the first word is `-`."""
        runtime = self._started()
        words, name = _keys(request), runtime.name
        recordings = runtime.host.environment.recordings
        if recordings is None:
            raise UsageError(f"{name} keeps no recordings")
        if words[:1] == [STOP]:
            recordings.deselect(name, words[1:] or recordings.selected(name))
        elif len({*recordings.selected(name), *words}) > RECORDED_MAX:
            raise UsageError(f"record at most {RECORDED_MAX} keys of a controller at a time")
        else:
            recordings.select(name, words)
        keys = recordings.selected(name)
        return msgspec.json.encode(Recorded(controller=name, daemon=self._daemon, keys=keys))

    async def _resync(self, request: bytes) -> bytes:
        keys, runtime, source = _keys(request), self._running(), ""
        invalid, paused = dict[str, str](), dict[str, str]()
        unknown, elsewhere, queued = list[str](), list[str](), list[str]()
        slices = Slices()
        for key in keys:
            if slices.is_over():
                await slices.pause()
            explanation = runtime.explain(key)
            source = explanation.source
            has_work = explanation.exists or explanation.failures or explanation.paused is not None
            if explanation.invalid:
                invalid[key] = explanation.invalid
            elif not (has_work or any(explanation.owned.values())):
                unknown.append(key)
            elif explanation.paused is not None:
                paused[key] = str(explanation.paused)
            elif not runtime.holds(key):
                elsewhere.append(key)
            else:
                queued.append(key)
        answer = Queuing(
            controller=runtime.name,
            daemon=self._daemon,
            queued=runtime.resync(*queued) if queued or not keys else 0,
            source=source,
            unknown=unknown,
            elsewhere=elsewhere,
            invalid=invalid,
            invalid_count=len(invalid),
            paused=paused,
            paused_count=len(paused),
        )
        return self._fitting(SHOWN_MAX, answer.limited)

    async def _plan(self, runtime: ControllerRuntime, _request: bytes) -> bytes:
        self._running()
        return self._planned(await runtime.garbage_plan(at_once=True, orphans_max=ORPHANS_MAX))

    async def _apply(self, runtime: ControllerRuntime, request: bytes) -> bytes:
        plan = self._requested_plan(request)
        self._running()
        removed = await runtime.garbage_apply(plan)
        orphans = len(removed.orphans)
        log.info("deleted orphans on request", controller=plan.controller, orphans=orphans)
        return msgspec.json.encode(removed)

    async def _accept(self, runtime: ControllerRuntime, request: bytes) -> bytes:
        """Accept the bucket for the reason that the plan shows, and for no other reason."""
        requested = self._requested_plan(request)
        self._running()
        held = runtime.garbage_held
        if held and held != requested.refused:
            raise UsageError(
                f"garbage collection of {runtime.name} is held for another reason than the plan "
                f"shows: {held}; request {Verb.GC_PLAN} again"
            )
        plan = await runtime.garbage_accept()
        log.info("bucket accepted on request", controller=runtime.name, reason=held or None)
        return self._planned(plan)

    def _planned(self, plan: GarbagePlan) -> bytes:
        whole = ControllerPlan.of(plan, self._runnable.name)
        return self._fitting(ORPHANS_MAX, partial(first_orphans, whole))

    def _requested_plan(self, request: bytes) -> ControllerPlan:
        plan = _decoded(request, ControllerPlan, f"the plan that {Verb.GC_PLAN} returned")
        if plan.controller != self._runnable.name:
            raise UsageError(f"this is a plan of {plan.controller}, not of {self._runnable.name}")
        return plan

    # ---- all verbs

    def _fitting(self, count: int, limited: Callable[[int], msgspec.Struct]) -> bytes:
        return fitting(self._connection.payload_max, count, limited)

    def _started(self) -> Hosted:
        if self._hosted is None or not self._hosted.host.informers:
            raise NatsctlError(f"{self._runnable.name} is starting: try again")
        return self._hosted

    def _running(self) -> Hosted:
        if self._stopping:
            raise NatsctlError(f"{self._runnable.name} is stopping: try again")
        return self._started()


def _decoded(request: bytes, kind: type[T], wanted: str) -> T:
    try:
        return msgspec.json.decode(request, type=kind)
    except DECODE_ERRORS as error:
        raise UsageError(f"send {wanted}: {error}") from error


def _key(request: bytes) -> str:
    keys = _keys(request)
    if len(keys) != 1:
        raise UsageError("send one key as plain text")
    return keys[0]


def _keys(request: bytes) -> list[str]:
    try:
        keys = request.decode().split(maxsplit=KEYS_MAX)
    except UnicodeDecodeError as error:
        raise UsageError("send keys as UTF-8 text") from error
    if len(keys) > KEYS_MAX:
        raise UsageError(f"send at most {KEYS_MAX} keys at a time, or none for all primaries")
    return check_keys(keys)


def this_process() -> DaemonProcess:
    """Return this process, with a new id."""
    return DaemonProcess(
        id=secrets.token_hex(8),
        host=socket.gethostname(),
        pid=os.getpid(),
        version=installed("natsctl"),
        started=time_text(datetime.now(UTC)),
    )


@asynccontextmanager
async def answering(
    connection: Connection,
    runtimes: Sequence[Runnable],
    *,
    participations: Mapping[str, Participation] = NO_PARTICIPATIONS,
    daemon: DaemonProcess | None = None,
    clusters: Mapping[str, str] = NO_CLUSTERS,
    planner: Planner | None = None,
    dry_run: bool = False,
) -> AsyncIterator[None]:
    """Serve these controllers over NATS, and look for other daemons that run them, see `Peers`.

    *participations* and *clusters*, their identities, are by the name of the controller.
    """
    daemon = this_process() if daemon is None else daemon
    controllers = [
        ControllerEndpoints(
            runtime,
            daemon,
            connection,
            participation=participations.get(runtime.name),
            cluster=clusters.get(runtime.name, ""),
            planner=planner,
            dry_run=dry_run,
        )
        for runtime in runtimes
    ]
    identity = ServiceIdentity(
        name=NAME,
        version=daemon.version,
        description="runs controllers whose desired state is in NATS JetStream KV",
        metadata={"host": daemon.host, "pid": str(daemon.pid)},
        id=daemon.id,
    )

    async def keep_offering(offer: Callable[[Sequence[Endpoint]], None]) -> None:
        offered: list[Endpoint] | None = None
        while True:
            current = [endpoint for one in controllers for endpoint in one.endpoints()]
            if current != offered:
                offer(current)
                offered = current
            await asyncio.sleep(CHECK_S)

    async with serving(connection, identity) as service:
        tasks = [asyncio.create_task(keep_offering(service.offer), name="endpoints")]
        for controller in controllers:
            watch = controller.peers.watch(connection)
            tasks.append(asyncio.create_task(watch, name="other daemons"))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
