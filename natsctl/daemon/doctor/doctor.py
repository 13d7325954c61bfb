"""Checks whether NATS and the cluster have what controllers need."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.slots import makes_secondaries
from natsctl.core.hosted import Hosted
from natsctl.daemon.client import Daemons
from natsctl.daemon.doctor.buckets import (
    check_buckets,
    check_events,
    check_garbage,
    check_holders,
    check_installation,
    check_leases,
    check_mirrors,
)
from natsctl.daemon.doctor.finding import Bounds, CheckFinding, failed, ok, permit, skew, warning
from natsctl.daemon.doctor.kube import check_kube
from natsctl.daemon.kinds import Used, cluster_for, clusters_of, first_runs_of, leases_of, used_by
from natsctl.daemon.messages import NAME, Verb
from natsctl.daemon.operator import Guest, owner_of
from natsctl.daemon.peers import conflict
from natsctl.daemon.rbac import needs
from natsctl.daemon.settings.settings import ControllerSettings
from natsctl.errors import (
    ConnectError,
    NatsctlError,
    PermissionDeniedError,
    StoreError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.probe import PROBE, Probe
from natsctl.jetstream.service import ROOT, control_subjects
from natsctl.kubernetes.options import KubeOptions
from natsctl.telemetry.hiding import enumerated

RECORDINGS = (Verb.RECORDING, Verb.RECORDING_UNMASKED)
SHOWN_MAX = 5  # keys in a finding
SERVICE, ASKING = "service", "asking daemons"

Verbs = Mapping[str, Sequence[Verb]]
"""The verbs that a daemon answers, by controller."""


def verbs_of(controllers: Iterable[Controller | Guest]) -> Verbs:
    """Return the verbs that a daemon with these controllers answers."""
    return {controller.name: _verbs_of(controller) for controller in controllers}


def _verbs_of(controller: Controller | Guest) -> Sequence[Verb]:
    match controller:
        case Controller() if makes_secondaries(type(controller)):
            return tuple(Verb)
        case Controller() | Hosted():
            return tuple(verb for verb in Verb if not verb.collects)
        case _:
            return (Verb.STATUS,)


async def check_service(connection: Connection, verbs: Verbs) -> AsyncIterator[CheckFinding]:
    """Yield whether a daemon of this user can serve requests, and which ones the user may send.

    Controllers work without both. The checks only try permissions, see `Probe`.
    """
    if verbs:
        yield await _serving(Probe(connection), verbs)
        yield await _requesting(Probe(connection), verbs)


async def check_modes(
    connection: Connection, controllers: Iterable[str]
) -> AsyncIterator[CheckFinding]:
    """Yield a warning for each controller whose keys several daemons sync at once.

    There is no finding if this user may not send requests to daemons.
    """
    try:
        daemons = await Daemons.find(connection)
    except NatsctlError:
        return
    for name in controllers:
        if name in daemons.controllers:
            with suppress(NatsctlError):
                statuses = await daemons.status(name)
                quarantined = sorted({key for status in statuses for key in status.quarantined})
                if quarantined:
                    keys = enumerated(quarantined, SHOWN_MAX)
                    found = f"processes died during the syncs of {keys}, which are quarantined"
                    advice = "read the logs of those processes, then natsctl resync BUCKET/KEY"
                    yield warning(f"keys {name}", found, advice)
                for trouble in sorted({status.trouble for status in statuses} - {""}):
                    advice = "see the daemon's log"
                    yield warning(f"daemons of {name}", trouble, advice)
                reason = conflict(statuses)
                if reason:
                    found, _, advice = reason.partition(": ")
                    yield warning(f"modes {name}", found, advice)


async def _serving(probe: Probe, verbs: Verbs) -> CheckFinding:
    subjects = [verb.subject(name) for name, offered in verbs.items() for verb in offered]
    denied = await probe.subscribing(*control_subjects(NAME, PROBE), *subjects)
    if not denied:
        return ok(SERVICE, f"{NAME}, of {', '.join(verbs)}")
    general = [subject.replace(PROBE, "*") for subject in denied]
    return warning(
        SERVICE,
        f"a daemon of this user gets no requests: it may not subscribe to {', '.join(general)}",
        f"for natsctl status, explain, tree, resync and gc, {permit('subscribe', general)}",
    )


async def _requesting(probe: Probe, verbs: Verbs) -> CheckFinding:
    """Return the verbs that this user may request; a user who only runs daemons needs none."""
    find = f"{ROOT}.INFO.{NAME}"
    cannot_find = await probe.requesting(find)
    subjects = {verb.subject(name): verb for name, offered in verbs.items() for verb in offered}
    denied = await probe.requesting(*subjects)
    may_request = {subjects[subject] for subject in subjects.keys() - denied}
    allowed = [verb for verb in Verb if verb in may_request]
    if cannot_find and set(allowed) - {Verb.STATUS}:  # daemons themselves need the status
        return warning(
            ASKING,
            f"this user may send requests to daemons but not find them: not publish to {find}",
            permit("publish", [find]),
        )
    if denied and not cannot_find and not allowed:
        return warning(
            ASKING,
            f"this user may find daemons but send no requests: not publish to {', '.join(denied)}",
            f"for the requests that the user needs, {permit('publish', denied)}",
        )
    if cannot_find or not allowed:
        return ok(
            ASKING, "not permitted to this user: only commands such as natsctl status need it"
        )
    exceptions = f"; not everything: {', '.join(denied)}" if denied else ""
    return ok(ASKING, ", ".join(allowed) + exceptions)


SERVER, SPEED, JETSTREAM, LIMITS, CLOCK = (
    *("nats server", "nats latency", "jetstream", "jetstream limits", "nats clock"),
)
SAMPLES = 5  # requests; the latency is the median
UNANSWERED = "cannot be answered"  # in the error of a user who may not receive answers


class NatsNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The needs of controllers in NATS.

    Attributes:
        used: the buckets.
        leases: the leases and member records; empty without leader election and sharding.
        verbs: the verbs that daemons answer, by controller.
        owners: the kinds of the primaries, by controller.
        clusters: returns the identities of the Kubernetes clusters, by controller.
    """

    used: Sequence[Used]
    leases: Sequence[Used]
    verbs: Verbs
    owners: Mapping[str, str]
    clusters: Callable[[], Awaitable[Mapping[str, str]]]


async def check_nats(
    options: NatsOptions, needs: NatsNeeds, bounds: Bounds
) -> AsyncIterator[CheckFinding]:
    """Yield the findings about a server, without changing anything on it.

    A failure that makes all further checks impossible is the last finding.
    """
    try:
        async with connect(options) as connection:
            async for finding in _connected(connection, needs, bounds):
                yield finding
    except (ConnectError, UsageError) as error:
        yield failed(SERVER, str(error), _connect_advice(error))


def _connect_advice(error: NatsctlError) -> str:
    if isinstance(error, UsageError):
        return "correct the option or the file that it names"
    if "refuses" in str(error):
        return "set the credentials: --user and --password, --creds, --nkey or --token"
    return "start a server, or set its address: --server, --context or NATSCTL_SERVER"


async def _connected(
    connection: Connection, needs: NatsNeeds, bounds: Bounds
) -> AsyncIterator[CheckFinding]:
    version = connection.client.connected_server_version
    number = f"{version.major}.{version.minor}.{version.patch}"
    yield ok(SERVER, f"{connection.state().server}, version {number}")
    try:
        yield await _latency(connection, bounds)
        info = await connection.api("INFO")
    except PermissionDeniedError as error:
        if UNANSWERED in str(error):
            yield failed("nats permissions", str(error), "let the user subscribe to its inbox")
            return
        advice = "allow it if the limits are to be checked: controllers do not need it"
        yield warning(LIMITS, f"cannot read them: {error}", advice)
    except StoreError as error:
        yield failed(
            JETSTREAM, str(error), "start the server with -js, and enable it for the account"
        )
        return
    else:
        yield ok(
            JETSTREAM, f"{info.get('streams', 0)} streams, {info.get('consumers', 0)} consumers"
        )
        yield _limits(info, bounds)
    for part in (
        check_installation(connection),
        check_buckets(connection, needs.used),
        check_mirrors(connection, [use.bucket for use in needs.used]),
        check_leases(connection, needs.leases),
        check_holders(connection, needs.owners, needs.clusters),
        check_garbage(connection, needs.used),
        check_events(connection, needs.used),
        check_service(connection, needs.verbs),
        check_modes(connection, needs.verbs),
        _clock(connection, needs.used, bounds),
    ):
        async for finding in part:
            yield finding


async def _latency(connection: Connection, bounds: Bounds) -> CheckFinding:
    """Measure the time of a request without responders, which the server itself answers."""
    clock = asyncio.get_running_loop().time
    times_s = []
    for _ in range(SAMPLES):
        started = clock()
        try:
            await connection.request(f"natsctl.{PROBE}", b"")
        except StoreTimeoutError as error:
            return failed(SPEED, str(error), "check the network and the load of the server")
        except PermissionDeniedError as error:
            if UNANSWERED in str(error):
                raise
        except StoreError:
            pass
        times_s.append(clock() - started)
    found = f"{1000 * median(times_s):.1f} ms round trip"
    if median(times_s) > bounds.slow_s:
        return warning(
            SPEED, found, "every write takes as long: run controllers closer to the server"
        )
    return ok(SPEED, found)


def _limits(info: dict[str, Any], bounds: Bounds) -> CheckFinding:
    tiers = {"": info, **(info.get("tiers") or {})}
    shares = [
        (in_use / limit, f"{in_use:,} of {limit:,} {name}{tier and f' ({tier})'}")
        for tier, account in tiers.items()
        for name, in_use, limit in _limited(account)
    ]
    full = [text for share, text in shares if share >= bounds.full]
    none_left = [text for share, text in shares if share >= 1]
    advice = "raise the account's limits, or delete data"
    if none_left:
        return failed(LIMITS, f"nothing is free: {', '.join(none_left)}", advice)
    if full:
        return warning(LIMITS, f"little is free: {', '.join(full)}", advice)
    return ok(LIMITS, ", ".join(text for _, text in shares) or "there are none")


def _limited(account: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return the name, the used amount and the limit of each limited resource."""
    limits = account.get("limits") or {}
    named = {
        "bytes of memory": ("memory", "max_memory"),
        "bytes of files": ("storage", "max_storage"),
        "streams": ("streams", "max_streams"),
        "consumers": ("consumers", "max_consumers"),
    }
    return [
        (name, account.get(in_use, 0), limits[limit])
        for name, (in_use, limit) in named.items()
        if limits.get(limit, -1) > 0
    ]


async def _clock(
    connection: Connection, used: Sequence[Used], bounds: Bounds
) -> AsyncIterator[CheckFinding]:
    """Compare the local clock with the server's, whose time is in each `STREAM.INFO`."""
    for name in dict.fromkeys(use.bucket for use in used):
        before = datetime.now(UTC)
        try:
            info = await connection.api(f"STREAM.INFO.KV_{name}")
        except StoreError:
            continue
        if "ts" in info:
            server_time = datetime.fromisoformat(info["ts"])
            yield skew(CLOCK, before, server_time, datetime.now(UTC), bounds.skew_s)
            return


async def examine(
    controllers: Sequence[Controller | Guest],
    nats: NatsOptions,
    cluster: KubeOptions | None,
    *,
    settings: ControllerSettings | None = None,
    bounds: Bounds | None = None,
) -> AsyncIterator[CheckFinding]:
    """Yield the findings about NATS, then about the cluster.

    The checks change nothing. Controllers do not work if a finding is failed.

    Args:
        controllers: the controllers; without any, only the needs of every controller are checked.
        nats: how to connect to NATS.
        cluster: how to connect to the cluster; None if there is none.
        settings: the settings of the controllers; leases are checked if the settings need them.
        bounds: the bounds beyond which a check warns.
    """
    settings = ControllerSettings() if settings is None else settings
    nats_needs = NatsNeeds(
        used=(*used_by(controllers), *first_runs_of(controllers, settings)),
        leases=leases_of(controllers, settings),
        verbs=verbs_of(controllers),
        owners={controller.name: owner_of(controller) for controller in controllers},
        clusters=partial(_clusters, controllers, cluster),
    )
    bounds = Bounds() if bounds is None else bounds
    async for finding in check_nats(nats, nats_needs, bounds):
        yield finding
    async for finding in check_kube(cluster, needs(controllers), bounds):
        yield finding


async def _clusters(
    controllers: Sequence[Controller | Guest], cluster: KubeOptions | None
) -> Mapping[str, str]:
    """Return the identities of the clusters by controller; empty if they cannot be read."""
    try:
        async with cluster_for(controllers, cluster) as kube:
            return await clusters_of(controllers, kube)
    except NatsctlError:
        return {}  # the checks of the cluster report the error
