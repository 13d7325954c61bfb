"""The metrics of a scrape: their names, labels and meanings.

Metrics that controller-runtime and client-go have use their names and labels, so that dashboards
for them also show natsctl. The names of other metrics begin with `natsctl_`. A scrape reads each
number from the part that counts it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from natsctl.core.coordination.shares import ShareState
from natsctl.core.counters import Counts
from natsctl.core.status import CacheMeasures, Measures, QueueMeasures, UpkeepMeasures
from natsctl.daemon.watchdog import Stalls
from natsctl.jetstream.connection import ConnectionState
from natsctl.telemetry.histogram import Distribution
from natsctl.telemetry.metrics import Family, Labels, MetricTable


class Scrape(msgspec.Struct, frozen=True):
    """All numbers of one scrape.

    `lags` are the known lags of caches in revisions, by controller and slot. `requests` are the
    requests to a cluster by status, method and host, and `times` how long they took. `stalls` are
    the times that handlers blocked the event loop, by controller.
    """

    measures: Sequence[Measures] = ()
    lags: Mapping[str, Mapping[str, int]] = {}
    connection: ConnectionState | None = None
    elections: Sequence[ShareState] = ()
    shards: Sequence[ShareState] = ()
    requests: Mapping[Labels, int] = {}
    times: Mapping[Labels, Distribution] = {}
    stalls: Mapping[str, Stalls] = {}
    version: str = ""


RESULTS = MetricTable[int](
    ("controller", "result"),
    counters={
        "controller_runtime_reconcile_total": (
            "Syncs by result: success, requeue_after or error.",
            float,
        ),
    },
)

PLANNED = MetricTable[int](
    ("controller", "action", "kind"),
    counters={
        "natsctl_planned_changes_total": (
            "Changes that a controller would have made that only plans (run --dry-run).",
            float,
        ),
    },
)

EVENTS = MetricTable[int](
    ("controller", "system", "outcome"),
    counters={
        "natsctl_events_total": (
            "Events by system and outcome: sent, merged into another one as repeats, or dropped.",
            float,
        ),
    },
)

SYNCS = MetricTable[Counts](
    ("controller",),
    counters={
        "controller_runtime_reconcile_errors_total": (
            "Syncs that failed.",
            lambda syncs: syncs.failed,
        ),
        "controller_runtime_terminal_reconcile_errors_total": (
            "Syncs that failed and are not retried until the object changes.",
            lambda syncs: syncs.final,
        ),
        "controller_runtime_reconcile_timeouts_total": (
            "Syncs that failed because they took too long.",
            lambda syncs: syncs.timeouts,
        ),
    },
    gauges={
        "natsctl_unanswered_changes": (
            "Changed primaries that wait for a successful sync and are not being synced.",
            lambda syncs: syncs.unanswered,
        ),
        "natsctl_oldest_unanswered_change_seconds": (
            "Time since the oldest unanswered change; 0 if there is none.",
            lambda syncs: syncs.oldest_s,
        ),
    },
    histograms={
        "controller_runtime_reconcile_time_seconds": (
            "Duration of syncs, including the wait for the last writes of the key.",
            lambda syncs: syncs.duration_s,
        ),
        "natsctl_convergence_seconds": (
            "Time from a change of a primary until a sync of the primary succeeds.",
            lambda syncs: syncs.convergence_s,
        ),
    },
)

UPKEEP = MetricTable[UpkeepMeasures](
    ("controller",),
    counters={
        "natsctl_barrier_wait_seconds_total": (
            "Time that syncs waited for the caches to show the last writes of their key.",
            lambda upkeep: upkeep.barrier_waited_s,
        ),
        "natsctl_barrier_timeouts_total": (
            "Waits that timed out, so that the sync read the store instead.",
            lambda upkeep: upkeep.barrier_timeouts,
        ),
        "natsctl_applies_undone_total": (
            "Times that another writer reverted an applied manifest.",
            lambda upkeep: upkeep.undone,
        ),
    },
    gauges={
        "natsctl_orphans": (
            "Secondaries without an owner in the last GC cycle.",
            lambda upkeep: upkeep.orphans,
        ),
        "natsctl_garbage_collection_refused": (
            "1 if the last GC cycle was not allowed to delete; natsctl gc plan prints the reason.",
            lambda upkeep: upkeep.refused,
        ),
        "natsctl_contested_keys": (
            "Keys whose manifests another writer reverts repeatedly.",
            lambda upkeep: upkeep.contested,
        ),
    },
)

CONTROLLERS = MetricTable[Measures](
    ("controller",),
    gauges={
        "natsctl_controller_synced": (
            "1 if the controller has started to sync.",
            lambda controller: controller.synced,
        ),
        "natsctl_controller_paused": (
            "1 if the whole controller is paused.",
            lambda controller: controller.paused,
        ),
        "natsctl_paused_keys": (
            "Paused keys, without those of a controller that is paused as a whole.",
            lambda controller: controller.paused_keys,
        ),
        "natsctl_recordings_bytes": (
            "Memory of the recordings of syncs; the oldest are dropped at the limit.",
            lambda controller: controller.recordings_bytes,
        ),
        "natsctl_failing_keys": (
            "Keys of this process whose last sync failed, also in an earlier process.",
            lambda controller: len(controller.health.failing),
        ),
        "natsctl_oldest_failure_seconds": (
            "Time since the first failure of the key that fails the longest; 0 if no key fails.",
            lambda controller: controller.health.oldest_failure_s or 0.0,
        ),
        "natsctl_invalid_keys": (
            "Primaries of this process whose newest state is invalid and therefore skipped.",
            lambda controller: len(controller.health.invalid),
        ),
        "natsctl_quarantined_keys": (
            "Keys that are not synced because processes died during their syncs.",
            lambda controller: len(controller.health.quarantined),
        ),
        "natsctl_overdue_keys": (
            "Keys whose change has waited for more than five minutes, and that do not fail.",
            lambda controller: len(controller.health.overdue),
        ),
        "natsctl_unhealthy_keys": (
            "Keys that fail, are invalid, quarantined or overdue; each counts once.",
            lambda controller: controller.health.unhealthy,
        ),
        "controller_runtime_max_concurrent_reconciles": (
            "Maximum number of keys that the controller syncs concurrently.",
            lambda controller: sum(queue.workers for queue in controller.queues),
        ),
        "controller_runtime_active_workers": (
            "Keys that are being synced.",
            lambda controller: sum(queue.stats.held for queue in controller.queues),
        ),
    },
)

QUEUES = MetricTable[QueueMeasures](
    ("name", "controller"),
    counters={
        "workqueue_adds_total": (
            "Times that a key was added that was not due.",
            lambda queue: queue.stats.adds,
        ),
        "workqueue_retries_total": (
            "Times that a key was added with a delay: retries and delayed syncs.",
            lambda queue: queue.stats.retries,
        ),
    },
    gauges={
        "workqueue_depth": (
            "Keys that are due, including keys that were added again during their sync.",
            lambda queue: queue.stats.depth,
        ),
        "workqueue_unfinished_work_seconds": (
            "Sum of the times that the held keys have been held.",
            lambda queue: queue.stats.unfinished_s,
        ),
        "workqueue_longest_running_processor_seconds": (
            "Longest time that a key has been held.",
            lambda queue: queue.stats.longest_s,
        ),
        "natsctl_workqueue_waiting": (
            "Keys that are not due yet: retries and delayed syncs.",
            lambda queue: queue.stats.waiting,
        ),
    },
    histograms={
        "workqueue_queue_duration_seconds": (
            "Time from when a key is due until a worker takes it.",
            lambda queue: queue.stats.latency_s,
        ),
        "workqueue_work_duration_seconds": (
            "Time that a worker holds a key.",
            lambda queue: queue.stats.work_s,
        ),
    },
)

CACHES = MetricTable[CacheMeasures](
    ("controller", "slot", "kind"),
    counters={
        "natsctl_watch_restarts_total": (
            "Times that the watch broke and was established again.",
            lambda cache: cache.restarts,
        ),
    },
    gauges={
        "natsctl_cache_complete": (
            "1 if the cache is synced: it has seen a complete listing.",
            lambda cache: cache.synced,
        ),
        "natsctl_watch_up": (
            "1 if the cache is synced and has a watch.",
            lambda cache: cache.synced and not cache.failure,
        ),
        "natsctl_cache_objects": ("Objects in the cache.", lambda cache: cache.objects),
        "natsctl_cache_revision": (
            "Revision up to which the cache shows all writes.",
            lambda cache: cache.revision,
        ),
        "natsctl_invalid_objects": (
            "Objects whose newest state is invalid and therefore skipped.",
            lambda cache: cache.invalid,
        ),
    },
)

LAGS = MetricTable[int](
    ("controller", "slot", "kind"),
    gauges={
        "natsctl_cache_lag_revisions": (
            "Revisions that the cache lags behind its bucket; absent if unknown.",
            float,
        ),
    },
)

CONNECTION = MetricTable[ConnectionState](
    (),
    counters={
        "natsctl_connection_losses_total": (
            "Times that the connection to NATS was lost.",
            lambda connection: connection.losses,
        ),
        "natsctl_connection_errors_total": (
            "Asynchronous errors of the connection to NATS.",
            lambda connection: connection.errors,
        ),
    },
    gauges={
        "natsctl_connection_up": (
            "1 if the process is connected to NATS.",
            lambda connection: connection.connected,
        ),
    },
)

REQUESTS = MetricTable[int](
    ("code", "method", "host"),
    counters={
        "rest_client_requests_total": (
            "Requests to a cluster by status; <error> if there was no response.",
            float,
        ),
    },
)

TIMES = MetricTable[Distribution](
    ("verb", "host"),
    histograms={
        "rest_client_request_duration_seconds": (
            "Time until a cluster began its response, or until the request was given up.",
            lambda times: times,
        ),
    },
)

ELECTIONS = MetricTable[ShareState](
    ("name",),
    gauges={
        "leader_election_master_status": (
            "1 if this process is the leader of the controller with this name.",
            lambda election: election.works,
        ),
        "natsctl_lease_known": (
            "1 if the last read or write of the lease succeeded.",
            lambda election: election.known,
        ),
        "natsctl_lease_epoch": (
            "Epoch of the term, which grows with each leader; absent on standby.",
            lambda election: election.epoch,
        ),
    },
)

SHARDS = MetricTable[ShareState](
    ("name",),
    gauges={
        "natsctl_shard_members": (
            "Members in this member's view of the group; 0 before it joins.",
            lambda shard: len(shard.members),
        ),
        "natsctl_shard_moving": (
            "1 if this process waits for a rebalance.",
            lambda shard: shard.moving,
        ),
    },
)

STALLS = MetricTable[Stalls](
    ("controller",),
    counters={
        "natsctl_event_loop_blocked_total": (
            "Times that a handler blocked the event loop for longer than a second.",
            lambda stalls: stalls.count,
        ),
        "natsctl_event_loop_blocked_seconds_total": (
            "Total time that handlers blocked the event loop for longer than a second.",
            lambda stalls: stalls.seconds,
        ),
    },
)

BUILD = MetricTable[str](
    ("version",),
    gauges={
        "natsctl_build_info": ("1, with the version as a label.", lambda _: 1),
    },
)


def families(scrape: Scrape) -> list[Family]:
    """Return all metrics with the numbers of this scrape."""
    controllers = {measures.controller: measures for measures in scrape.measures}
    named: dict[Labels, Measures] = {(name,): m for name, m in controllers.items()}
    syncs = {name: m.syncs for name, m in named.items() if m.syncs is not None}
    return [
        *RESULTS.families(_results(syncs)),
        *SYNCS.families(syncs),
        *UPKEEP.families({name: m.upkeep for name, m in named.items() if m.upkeep is not None}),
        *CONTROLLERS.families(named),
        *PLANNED.families(
            {
                (name, *change): n
                for name, m in controllers.items()
                for change, n in m.planned.items()
            }
        ),
        *EVENTS.families(
            {(name, *kind): n for name, m in controllers.items() for kind, n in m.events.items()}
        ),
        *QUEUES.families({(q.name, name): q for name, m in controllers.items() for q in m.queues}),
        *CACHES.families(
            {(name, c.slot, c.kind): c for name, m in controllers.items() for c in m.caches}
        ),
        *LAGS.families(_lags(scrape)),
        *CONNECTION.families({} if scrape.connection is None else {(): scrape.connection}),
        *REQUESTS.families(scrape.requests),
        *TIMES.families(scrape.times),
        *ELECTIONS.families({(election.name,): election for election in scrape.elections}),
        *SHARDS.families({(shard.name,): shard for shard in scrape.shards}),
        *STALLS.families(_stalls(scrape)),
        *BUILD.families({(scrape.version,): scrape.version}),
    ]


def _results(syncs: Mapping[Labels, Counts]) -> dict[Labels, int]:
    results: dict[Labels, int] = {}
    for name, counts in syncs.items():
        results[*name, "success"] = counts.succeeded
        results[*name, "requeue_after"] = counts.delayed
        results[*name, "error"] = counts.failed
    return results


def _stalls(scrape: Scrape) -> dict[Labels, Stalls]:
    """Return the stalls of each controller, including those without any."""
    none = {measures.controller: Stalls() for measures in scrape.measures}
    return {(name,): stalls for name, stalls in {**none, **scrape.stalls}.items()}


def _lags(scrape: Scrape) -> dict[Labels, int]:
    return {
        (measures.controller, cache.slot, cache.kind): lags[cache.slot]
        for measures in scrape.measures
        for lags in (scrape.lags.get(measures.controller, {}),)
        for cache in measures.caches
        if cache.slot in lags
    }
