"""Checks whether NATS and the cluster have what controllers need."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from statistics import median
from typing import Any

from natsctl.controller.controller import Controller
from natsctl.controller.slots import makes_secondaries
from natsctl.core.coordination.lease import former_lease_of, records_of
from natsctl.core.hosted import Hosted
from natsctl.core.installation import FIRST_RUNS, first_run_of
from natsctl.daemon.client import Daemons
from natsctl.daemon.doctor.buckets import (
    check_buckets,
    check_events,
    check_garbage,
    check_holders,
    check_installation,
)
from natsctl.daemon.doctor.finding import CheckFinding, Result, failed, ok, permit, skew, warning
from natsctl.daemon.doctor.kube import check_kube
from natsctl.daemon.doctor.mirrors import check_mirrors
from natsctl.daemon.kinds import Used, cluster_for, clusters_of, used_by
from natsctl.daemon.messages import NAME, Verb, conflict
from natsctl.daemon.operator import Guest, owner_of
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

SERVER, SPEED, JETSTREAM, LIMITS = ("nats server", "nats latency", "jetstream", "jetstream limits")
CLOCK, PERMISSIONS = "nats clock", "nats permissions"
SERVICE, ASKING = "service", "asking daemons"
SAMPLES = 5  # requests; the latency is the median
SLOW_S = 0.25  # the time of a request and its answer that is a warning
FULL = 0.8  # the used share of a limit that is a warning
SHOWN_MAX = 5  # keys in a finding
UNANSWERED = "cannot be answered"  # in the error of a user who may not receive answers


async def examine(
    controllers: Sequence[Controller | Guest],
    nats: NatsOptions,
    cluster: KubeOptions | None,
    settings: ControllerSettings,
) -> AsyncIterator[CheckFinding]:
    """Yield the findings about NATS, then about the cluster; the checks change nothing.

    Without controllers, only the needs of every controller are checked; leases are if the settings
    need them. A failure that makes all further checks of NATS impossible is the last about NATS.
    """
    try:
        async with connect(nats) as connection:
            async for finding in _server(connection):
                yield finding
                if finding.result is Result.FAILED and finding.check in {PERMISSIONS, JETSTREAM}:
                    break  # no further request would be answered
            else:
                async for finding in _contents(connection, controllers, cluster, settings):
                    yield finding
    except (ConnectError, UsageError) as error:
        advice = "start a server, or set its address: --server, --context or NATSCTL_SERVER"
        if isinstance(error, UsageError):
            advice = "correct the option or the file that it names"
        elif "refuses" in str(error):
            advice = "set the credentials: --user and --password, --creds, --nkey or --token"
        yield failed(SERVER, str(error), advice)
    async for finding in check_kube(cluster, needs(controllers)):
        yield finding


async def _server(connection: Connection) -> AsyncIterator[CheckFinding]:
    version = connection.client.connected_server_version
    number = f"{version.major}.{version.minor}.{version.patch}"
    yield ok(SERVER, f"{connection.state().server}, version {number}")
    try:
        yield await _latency(connection)
        info = await connection.api("INFO")
    except PermissionDeniedError as error:
        if UNANSWERED in str(error):
            yield failed(PERMISSIONS, str(error), "let the user subscribe to its inbox")
        else:
            advice = "allow it if the limits are to be checked: controllers do not need it"
            yield warning(LIMITS, f"cannot read them: {error}", advice)
    except StoreError as error:
        advice = "start the server with -js, and enable it for the account"
        yield failed(JETSTREAM, str(error), advice)
    else:
        streams, consumers = info.get("streams", 0), info.get("consumers", 0)
        yield ok(JETSTREAM, f"{streams} streams, {consumers} consumers")
        yield _limits(info)


async def _contents(
    connection: Connection,
    controllers: Sequence[Controller | Guest],
    cluster: KubeOptions | None,
    settings: ControllerSettings,
) -> AsyncIterator[CheckFinding]:
    used, leases, verbs = list(used_by(controllers)), list[Used](), dict[str, list[Verb]]()
    for controller in controllers:
        name = controller.name
        verbs[name] = [Verb.STATUS]  # that a daemon answers
        if isinstance(controller, Controller) and makes_secondaries(type(controller)):
            verbs[name] = list(Verb)
        elif isinstance(controller, Controller | Hosted):
            verbs[name] = [verb for verb in Verb if not verb.collects]
        if settings.leader_elect or settings.shard:
            once = FIRST_RUNS.part(first_run_of(name))
            used.append(Used(once, written=True, controller=name, watched=False))
            leases.append(Used(records_of(name), written=True, controller=name))
            former = former_lease_of(name)  # which version 0.2 wrote
            leases.append(Used(former, written=False, controller=name, watched=False))

    async def clusters() -> Mapping[str, str]:
        with suppress(NatsctlError):  # the checks of the cluster report the error
            async with cluster_for(controllers, cluster) as kube:
                return await clusters_of(controllers, kube)
        return {}

    owners = {controller.name: owner_of(controller) for controller in controllers}
    for part in (
        check_installation(connection),
        check_buckets(connection, used),
        check_mirrors(connection, [use.bucket for use in used]),
        check_buckets(connection, leases, of_leases=True),
        check_holders(connection, owners, clusters),
        check_garbage(connection, used),
        check_events(connection, used),
        _requests(Probe(connection), verbs),
        _daemons(connection, verbs),
        _clock(connection, used),
    ):
        async for finding in part:
            yield finding


async def _latency(connection: Connection) -> CheckFinding:
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
    if median(times_s) > SLOW_S:
        advice = "every write takes as long: run controllers closer to the server"
        return warning(SPEED, found, advice)
    return ok(SPEED, found)


def _limits(info: dict[str, Any]) -> CheckFinding:
    named = {
        "bytes of memory": ("memory", "max_memory"),
        "bytes of files": ("storage", "max_storage"),
        "streams": ("streams", "max_streams"),
        "consumers": ("consumers", "max_consumers"),
    }
    texts, full, none_left = list[str](), list[str](), list[str]()
    for tier, account in {"": info, **(info.get("tiers") or {})}.items():
        for name, (field, limit_field) in named.items():
            in_use = account.get(field, 0)
            limit = (account.get("limits") or {}).get(limit_field, -1)
            if limit > 0:
                text = f"{in_use:,} of {limit:,} {name}{tier and f' ({tier})'}"
                texts.append(text)
                if in_use >= limit:
                    none_left.append(text)
                elif in_use / limit >= FULL:
                    full.append(text)
    advice = "raise the account's limits, or delete data"
    if none_left:
        return failed(LIMITS, f"nothing is free: {', '.join(none_left)}", advice)
    if full:
        return warning(LIMITS, f"little is free: {', '.join(full)}", advice)
    return ok(LIMITS, ", ".join(texts) or "there are none")


async def _clock(connection: Connection, used: Sequence[Used]) -> AsyncIterator[CheckFinding]:
    """Compare the local clock with the server's, whose time is in each `STREAM.INFO`."""
    for name in dict.fromkeys(use.bucket for use in used):
        before = datetime.now(UTC)
        try:
            info = await connection.api(f"STREAM.INFO.KV_{name}")
        except StoreError:
            continue
        if "ts" in info:
            server_time = datetime.fromisoformat(info["ts"])
            yield skew(CLOCK, before, server_time, datetime.now(UTC))
            return


async def _daemons(connection: Connection, names: Iterable[str]) -> AsyncIterator[CheckFinding]:
    """Yield a warning for each controller whose running daemons are in trouble.

    There's no finding if this user may not send requests to daemons.
    """
    with suppress(NatsctlError):
        daemons = await Daemons.find(connection)
        for name in sorted({*names} & {*daemons.controllers}):
            with suppress(NatsctlError):
                statuses = await daemons.status(name)
                quarantined = sorted({key for status in statuses for key in status.quarantined})
                if quarantined:
                    keys = enumerated(quarantined, SHOWN_MAX)
                    found = f"processes died during the syncs of {keys}, which are quarantined"
                    advice = "read the logs of those processes, then natsctl resync BUCKET/KEY"
                    yield warning(f"keys {name}", found, advice)
                for trouble in sorted({status.trouble for status in statuses} - {""}):
                    yield warning(f"daemons of {name}", trouble, "see the daemon's log")
                found, _, advice = conflict(statuses).partition(": ")
                if found:
                    yield warning(f"modes {name}", found, advice)


async def _requests(
    probe: Probe, verbs: Mapping[str, Sequence[Verb]]
) -> AsyncIterator[CheckFinding]:
    """Yield whether a daemon of this user can serve requests, and which ones the user may send.

    Controllers work without both, and a user who only runs daemons needs to send none. The checks
    only try permissions, see `Probe`.
    """
    if not verbs:
        return
    subjects = {verb.subject(name): verb for name, offered in verbs.items() for verb in offered}
    denied = await probe.subscribing(*control_subjects(NAME, PROBE), *subjects)
    if denied:
        general = [subject.replace(PROBE, "*") for subject in denied]
        found = f"it may not subscribe to {', '.join(general)}"
        advice = f"for natsctl status, explain, tree, resync and gc, {permit('subscribe', general)}"
        yield warning(SERVICE, f"a daemon of this user gets no requests: {found}", advice)
    else:
        yield ok(SERVICE, f"{NAME}, of {', '.join(verbs)}")
    find = f"{ROOT}.INFO.{NAME}"
    cannot_find = await probe.requesting(find)
    denied = await probe.requesting(*subjects)
    may_request = {subjects[subject] for subject in subjects.keys() - denied}
    allowed = [verb for verb in Verb if verb in may_request]
    if cannot_find and may_request - {Verb.STATUS}:  # daemons themselves need the status
        found = "this user may send requests to daemons but not find them: not publish to"
        yield warning(ASKING, f"{found} {find}", permit("publish", [find]))
    elif denied and not cannot_find and not allowed:
        found = "this user may find daemons but send no requests: not publish to"
        advice = f"for the requests that the user needs, {permit('publish', denied)}"
        yield warning(ASKING, f"{found} {', '.join(denied)}", advice)
    elif cannot_find or not allowed:
        yield ok(ASKING, "not permitted to this user: only commands such as natsctl status need it")
    else:
        exceptions = f"; not everything: {', '.join(denied)}" if denied else ""
        yield ok(ASKING, ", ".join(allowed) + exceptions)
