"""Whether NATS is as controllers need it: there, fast enough, with JetStream and room in it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

import msgspec

from natsctl.daemon.doctor.buckets import check_buckets, check_events
from natsctl.daemon.doctor.clock_skew import skew
from natsctl.daemon.doctor.finding import Bounds, Finding, failed, ok, warning
from natsctl.daemon.doctor.garbage import check_garbage
from natsctl.daemon.doctor.installation import check_installation
from natsctl.daemon.doctor.leases import check_holders, check_leases
from natsctl.daemon.doctor.service import Questions, check_modes, check_service
from natsctl.daemon.doctor.used_buckets import Used
from natsctl.errors import (
    ConnectError,
    NatsctlError,
    PermissionDeniedError,
    StoreError,
    StoreTimeoutError,
    UsageError,
)
from natsctl.jetstream.bucket.permission_probe import PROBE
from natsctl.jetstream.connection.connection import Connection, connect
from natsctl.jetstream.connection.options import NatsOptions

SERVER, SPEED, JETSTREAM, LIMITS, CLOCK = (
    *("nats server", "nats latency", "jetstream", "jetstream limits", "nats clock"),
)
ASKED = 5  # requests of which the latency is the median
UNANSWERED = "cannot be answered"  # what is said where the user may not hear any answer


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What controllers want of NATS.

    Attributes:
        used: the buckets.
        leases: those they hold, of `lease_ttl_s`; none where nothing needs any.
        lease_ttl_s: how long a lease lives that is not renewed.
        questions: what their daemons can be asked.
        owners: the kinds of the controllers' primaries, by the controllers' names.
    """

    used: Sequence[Used]
    leases: Sequence[Used]
    lease_ttl_s: float
    questions: Questions
    owners: Mapping[str, str]


async def check_nats(
    options: NatsOptions, wanted: Wanted, bounds: Bounds
) -> AsyncIterator[Finding]:
    """Give what is found, in the order in which it is looked at.

    Nothing is changed on the server. What makes everything after it impossible is the last.
    """
    try:
        async with connect(options) as connection:
            async for finding in _connected(connection, wanted, bounds):
                yield finding
    except (ConnectError, UsageError) as error:
        yield failed(SERVER, str(error), _way_in(error))


def _way_in(error: NatsctlError) -> str:
    if isinstance(error, UsageError):
        return "put the option right, or what it names"
    if "refuses" in str(error):
        return "give what the server knows: --user and --password, --creds, --nkey or --token"
    return "start a server, or say where it is: --server, --context or NATSCTL_SERVER"


async def _connected(
    connection: Connection, wanted: Wanted, bounds: Bounds
) -> AsyncIterator[Finding]:
    version = connection.client.connected_server_version
    shown = f"{version.major}.{version.minor}.{version.patch}"
    yield ok(SERVER, f"{connection.state().server}, version {shown}")
    try:
        yield await _latency(connection, bounds)
        info = await connection.api("INFO")
    except PermissionDeniedError as error:
        if UNANSWERED in str(error):
            yield failed("nats permissions", str(error), "let the user subscribe to its inbox")
            return
        advice = "only where limits are to be checked: allow it"
        yield warning(LIMITS, f"they cannot be seen: {error}", advice)
    except StoreError as error:
        yield failed(JETSTREAM, str(error), "start the server with -js, and give the account that")
        return
    else:
        yield ok(
            JETSTREAM, f"{info.get('streams', 0)} streams, {info.get('consumers', 0)} consumers"
        )
        yield _limits(info, bounds)
    for part in (
        check_installation(connection),
        check_buckets(connection, wanted.used),
        check_leases(connection, wanted.leases, wanted.lease_ttl_s),
        check_holders(connection, wanted.owners),
        check_garbage(connection, wanted.used),
        check_events(connection, wanted.used),
        check_service(connection, wanted.questions),
        check_modes(connection, wanted.questions),
        _clock(connection, wanted.used, bounds),
    ):
        async for finding in part:
            yield finding


async def _latency(connection: Connection, bounds: Bounds) -> Finding:
    """Measure how long a request takes that nobody answers: the server says so itself."""
    clock = asyncio.get_running_loop().time
    took = []
    for _ in range(ASKED):
        started = clock()
        try:
            await connection.request(f"natsctl.{PROBE}", b"")
        except StoreTimeoutError as error:
            return failed(SPEED, str(error), "look at the network, and at the server's load")
        except PermissionDeniedError as error:
            if UNANSWERED in str(error):
                raise
        except StoreError:
            pass
        took.append(clock() - started)
    found = f"{1000 * median(took):.1f} ms there and back"
    if median(took) > bounds.slow_s:
        return warning(SPEED, found, "every write takes as long: run controllers nearer to it")
    return ok(SPEED, found)


def _limits(info: dict[str, Any], bounds: Bounds) -> Finding:
    tiers = {"": info, **(info.get("tiers") or {})}
    shares = [
        (in_use / limit, f"{in_use:,} of {limit:,} {name}{tier and f' ({tier})'}")
        for tier, account in tiers.items()
        for name, in_use, limit in _limited(account)
    ]
    full = [text for share, text in shares if share >= bounds.full]
    none_left = [text for share, text in shares if share >= 1]
    advice = "raise the account's limits, or make room"
    if none_left:
        return failed(LIMITS, f"nothing is left: {', '.join(none_left)}", advice)
    if full:
        return warning(LIMITS, f"little is left: {', '.join(full)}", advice)
    return ok(LIMITS, ", ".join(text for _, text in shares) or "there are none")


def _limited(account: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return what is limited, how much of it is in use, and the limit."""
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
) -> AsyncIterator[Finding]:
    """Compare our clock with the server's, which tells its time with every stream."""
    for name in dict.fromkeys(each.bucket for each in used):
        before = datetime.now(UTC)
        try:
            info = await connection.api(f"STREAM.INFO.KV_{name}")
        except StoreError:
            continue
        if "ts" in info:
            theirs = datetime.fromisoformat(info["ts"])
            yield skew(CLOCK, before, theirs, datetime.now(UTC), bounds.skew_s)
            return
