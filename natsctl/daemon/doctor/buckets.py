"""Checks the buckets of controllers, the stream of events, and the records that natsctl keeps."""

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import Any

from natsctl.controller.garbage import MEMORY
from natsctl.core.compare_and_set import read
from natsctl.core.coordination.lease import TTL_MIN_S, Workload, name_taken, record_in, record_key
from natsctl.core.installation import INSTALLATION, known_installation
from natsctl.daemon.doctor.finding import CheckFinding, Result, failed, ok, permit, warning
from natsctl.daemon.kinds import Used
from natsctl.daemon.messages import ONE_CLUSTER
from natsctl.errors import (
    InvalidObjectError,
    PermissionDeniedError,
    StoreDiffersError,
    StoreError,
    StoreMissingError,
    StoreTimeoutError,
)
from natsctl.jetstream.bucket import (
    NANOSECONDS,
    Bucket,
    bucket_in,
    concerns_of,
)
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.events import PREFIX, STREAM
from natsctl.jetstream.probe import PROBE, Probe, unused_key
from natsctl.jetstream.store import KvStore, LeaseStore

EVENTS = "event stream"
DAY_S = 24 * 3600

RECREATE = "stop the daemons and delete the bucket: the first lease creates it again"


async def check_buckets(
    connection: Connection, used: Sequence[Used], *, of_leases: bool = False
) -> AsyncIterator[CheckFinding]:
    """Yield the findings about each bucket, and about the user's permissions there."""
    assess = _fit_for_leases if of_leases else _as_declared
    for name in dict.fromkeys(use.bucket for use in used):
        bucket, uses = Bucket(connection, name), [use for use in used if use.bucket == name]
        check = f"bucket {name}"
        try:
            info = await bucket.info()
        except StoreDiffersError as error:
            yield _difference_finding(check, str(error))
            continue
        except StoreMissingError:
            yield await _missing(bucket, uses)
        except PermissionDeniedError as error:
            subject = f"$JS.API.STREAM.INFO.{bucket.stream}"
            yield failed(check, str(error), permit("publish", [subject]))
        except StoreTimeoutError as error:
            advice = "check whether the servers of its stream run: a stream needs a leader"
            yield failed(check, str(error), advice)
        except StoreError as error:
            yield failed(check, str(error), "see the server's log")
        else:
            yield assess(bucket, uses, info)
        denied = [subject for use in uses for subject in await _denied(bucket, use)]
        if denied:
            yield _may_not(f"permissions {name}", denied)


async def _denied(bucket: Bucket, use: Used) -> list[str]:
    probe, keys = Probe(bucket.connection), use.kind.keys
    denied = await (probe.watching(bucket, keys) if use.watched else probe.getting(bucket))
    if use.written and not bucket.layout.origin:
        denied += await probe.writing(f"{bucket.prefix}{unused_key(keys)}")
    return denied


async def _missing(bucket: Bucket, used: Sequence[Used]) -> CheckFinding:
    check, refused = f"bucket {bucket.name}", await Probe(bucket.connection).creating(bucket.stream)
    if not any(use.kind.create for use in used):
        found = "it does not exist, and it is declared with create=False"
        return failed(check, found, f"create it: nats kv add {bucket.name} --history 5")
    if refused:
        found = f"it does not exist, and the user may not create it: {refused[0]}"
        return failed(check, found, _allow(refused))
    return ok(check, "it does not exist yet: the controller creates it")


def _as_declared(bucket: Bucket, used: Sequence[Used], info: dict[str, Any]) -> CheckFinding:
    check = f"bucket {bucket.name}"
    for use in used:
        different = bucket.difference(use.kind, info["config"])
        if different is not None:
            return _difference_finding(check, different)
    finding = _sound(bucket, info)
    if finding.result is not Result.OK or not any(use.watched for use in used):
        return finding
    if bucket.layout.origin:
        found = f"a mirror of {(origin := bucket_in(bucket.layout.origin))}"
        if not any(use.written for use in used):
            return ok(check, found)
        found = f"{found}: natsctl cannot write its objects, their status and finalizers"
        return warning(check, found, f"declare bucket {origin}, or write nothing")
    concerns = [*concerns_of(info), *_hints(bucket, info["config"])]
    if concerns:
        found, advice = ("; ".join(parts) for parts in zip(*concerns, strict=True))
        return warning(check, found, advice)
    ttl_s = bucket.marker_ttl_s(purge=False)
    markers = "" if ttl_s is None else f" for {ttl_s / DAY_S:g} days"
    return ok(check, f"{finding.found}, delete markers stay{markers}")


def _difference_finding(check: str, message: str) -> CheckFinding:
    """Return a failure from an error message of the form `bucket NAME …: advice`."""
    found, _, advice = message.partition(": ")
    return failed(check, found.removeprefix(f"{check} "), advice)


def _hints(bucket: Bucket, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    edit = f"nats stream edit {bucket.stream}"
    if bucket.layout.history == 1 and not config.get("max_age"):
        yield (
            (
                "history 1: the last state of an object that is deleted while no daemon runs "
                "cannot be read, nor whether it was paused"
            ),
            f"{edit} --max-msgs-per-subject 5",
        )
    if not bucket.layout.expiring:
        yield (
            "delete markers stay for ever, because the bucket does not allow a TTL per message",
            f"{edit} --allow-msg-ttl, with nats-server 2.11 or newer",
        )


def _sound(bucket: Bucket, info: dict[str, Any]) -> CheckFinding:
    check, config = f"bucket {bucket.name}", info["config"]
    replicas, cluster = config.get("num_replicas", 1), info.get("cluster") or {}
    behind = [
        str(peer.get("name", "one"))
        for peer in cluster.get("replicas") or ()
        if peer.get("offline") or not peer.get("current", True)
    ]
    if behind:
        found = f"of its {replicas} replicas these are offline or behind: {', '.join(behind)}"
        return warning(check, found, "start them again: writes fail without most of the replicas")
    if cluster.get("name") and replicas == 1:
        return warning(
            check,
            "one replica in a cluster: it is not available while that server is down",
            f"declare it with replicas=3, and run nats stream edit {bucket.stream} --replicas 3",
        )
    if not (config.get("deny_delete") or bucket.layout.origin):
        return warning(
            check,
            "single messages may be deleted, so an older revision can come back unnoticed",
            f"create it again with natsctl or nats kv add {bucket.name}: both deny such deletions",
        )
    copies = "one replica" if replicas == 1 else f"{replicas} replicas"
    return ok(check, f"history {config.get('max_msgs_per_subject')}, {copies}")


async def check_events(connection: Connection, used: Sequence[Used]) -> AsyncIterator[CheckFinding]:
    """Yield the findings about the stream of the controllers' events, if there are controllers."""
    names = list(dict.fromkeys(use.controller for use in used))
    if not names:
        return
    probe, denied = Probe(connection), list[str]()
    try:
        info = await connection.api(f"STREAM.INFO.{STREAM}")
    except StoreMissingError:
        denied += await probe.creating(STREAM)
        others: list[str] = []
        with suppress(StoreError):  # the user may not list streams
            answer = await connection.api("STREAM.NAMES", {"subject": f"{PREFIX}.>"})
            others = list(answer.get("streams") or ())
        if others:
            advice = f"give that stream other subjects: natsctl keeps events in the stream {STREAM}"
            found = f"stream {', '.join(others)} has the subjects {PREFIX}.>"
            yield failed(EVENTS, found, advice)
        else:
            yield ok(EVENTS, "it does not exist yet: the first event creates it")
    except StoreError as error:
        yield failed(EVENTS, str(error), permit("publish", [f"$JS.API.STREAM.INFO.{STREAM}"]))
    else:
        if f"{PREFIX}.>" in (info["config"].get("subjects") or ()):
            yield ok(EVENTS, f"{info['state'].get('messages', 0)} events")
        else:
            found = f"{STREAM} exists without the subjects {PREFIX}.>"
            advice = f"delete it, so that natsctl creates it: nats stream rm {STREAM}"
            yield failed(EVENTS, found, advice)
    for name in names:
        denied += await probe.writing(f"{PREFIX}.{name}.{PROBE}")
    if denied:
        yield _may_not("permissions of events", denied)


def _may_not(check: str, denied: list[str]) -> CheckFinding:
    subjects = list(dict.fromkeys(denied))
    return failed(check, f"this user may not publish to {', '.join(subjects)}", _allow(subjects))


def _allow(subjects: list[str]) -> str:
    return permit("publish", dict.fromkeys(subject.replace(PROBE, "*") for subject in subjects))


async def check_installation(connection: Connection) -> AsyncIterator[CheckFinding]:
    """Yield the id of the installation, or the reason why it can't be read."""
    check, none = "installation", "it has no id yet: the first daemon creates one"
    try:
        store = KvStore(Bucket(connection, INSTALLATION.bucket), INSTALLATION)
        current = await known_installation(store)
    except StoreMissingError:
        yield ok(check, none)
    except PermissionDeniedError as error:
        yield ok(check, f"only daemons need to read it: {error}")
    except (StoreError, InvalidObjectError) as error:
        yield failed(check, str(error), f"see nats kv get {INSTALLATION.bucket} installation")
    else:
        adopted = ", ".join(current.adopted) if current else ""
        objects = f", with the objects of {adopted}" if adopted else ""
        yield ok(check, f"{current.id}{objects}" if current else none)


async def check_garbage(
    connection: Connection, used: Iterable[Used]
) -> AsyncIterator[CheckFinding]:
    """Yield a warning, with the reason, for each controller whose garbage collection is held."""
    store = KvStore(Bucket(connection, MEMORY.bucket), MEMORY)
    for controller in dict.fromkeys(use.controller for use in used):
        try:
            stored = await read(store, f"gc.{controller}")
            held = "" if stored is None else MEMORY.decode(stored.value).held
        except (StoreError, InvalidObjectError):
            continue  # the checks of buckets and permissions report the error
        if held:
            advice = f"run natsctl gc plan, then natsctl repair gc -c {controller}"
            yield warning(f"garbage of {controller}", f"collection is held: {held}", advice)


async def check_holders(
    connection: Connection,
    owners: Mapping[str, str],
    clusters: Callable[[], Awaitable[Mapping[str, str]]],
) -> AsyncIterator[CheckFinding]:
    """Yield a failure for each controller that another application or another cluster has.

    *owners* are the kinds of the primaries by controller. *clusters* returns the identities of
    their clusters, and is called only if a record names a cluster. A lease that can't be read
    causes no finding.
    """
    store = LeaseStore(connection, ttl_s=TTL_MIN_S)
    for name, owner in owners.items():
        try:
            stored = await read(store, record_key(name))
        except StoreError:
            continue
        record, masks = record_in(None if stored is None else stored.value)
        if record is None or not masks:
            continue
        cluster = (await clusters()).get(name, "") if record.work.cluster else ""
        expected, holder = Workload(owner, cluster=cluster), next(iter(masks))
        if not expected.same(record.work):
            advice = "give one of the two controllers another name, and run it again"
            if expected.only_elsewhere(record.work):
                advice = ONE_CLUSTER
            yield failed(f"lease {name}", name_taken(name, holder, record.work, expected), advice)


def _fit_for_leases(bucket: Bucket, _used: Sequence[Used], info: dict[str, Any]) -> CheckFinding:
    check, config = f"bucket {bucket.name}", info["config"]
    if not config.get("allow_msg_ttl"):
        found = "leases cannot be written: the bucket does not allow a TTL per message"
        return failed(check, found, RECREATE)
    age_s = config.get("max_age", 0) / NANOSECONDS
    if age_s > 0:
        found = f"the record of who works expires {age_s:g} s after a change, and then all pause"
        return failed(check, found, RECREATE)
    return _sound(bucket, info)
