"""Checks a NATS server: connection, latency, JetStream, limits, clock and natsctl's records."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import msgspec

from natsctl.daemon.doctor.buckets import check_buckets, check_events, check_mirrors
from natsctl.daemon.doctor.finding import Bounds, CheckFinding, failed, ok, skew, warning
from natsctl.daemon.doctor.records import (
    check_garbage,
    check_holders,
    check_installation,
    check_leases,
)
from natsctl.daemon.doctor.requests import Verbs, check_modes, check_service
from natsctl.daemon.doctor.used_buckets import Used
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
from natsctl.jetstream.probe import PROBE

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
        lease_ttl_s: the time to live of a lease, in seconds.
        verbs: the verbs that daemons answer, by controller.
        owners: the kinds of the primaries, by controller.
        clusters: returns the identities of the Kubernetes clusters, by controller.
    """

    used: Sequence[Used]
    leases: Sequence[Used]
    lease_ttl_s: float
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
        check_mirrors(connection, needs.used),
        check_leases(connection, needs.leases, needs.lease_ttl_s),
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
