"""Which numbers a scrape shows, under which names.

What controller-runtime and client-go measure has their names and labels, so that dashboards made
for them show natsctl too; what only natsctl has begins with `natsctl_`. Nothing is counted for
the sake of this: each number is read where it is, at the moment of the scrape.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from natsctl.core.coordination.election import ElectionState
from natsctl.core.coordination.sharding import ShardState
from natsctl.core.insight.measures import CacheMeasures, Measures, QueueMeasures, UpkeepMeasures
from natsctl.core.sync.counters import Counts
from natsctl.daemon.observe.watchdog import Stalls
from natsctl.jetstream.connection.connection import ConnectionState
from natsctl.telemetry.metrics import (
    CounterMetric,
    Family,
    GaugeMetric,
    HistogramMetric,
    MetricTable,
)


class Scrape(msgspec.Struct, frozen=True):
    """Everything that one scrape is about.

    `lags` says by how many revisions each cache is behind, by controller and slot, where known;
    `requests` how many a cluster was sent, by status, method and host; `stalls` how often handlers
    blocked the event loop, by controller.
    """

    measures: Sequence[Measures] = ()
    lags: Mapping[str, Mapping[str, int]] = {}
    connection: ConnectionState | None = None
    elections: Sequence[ElectionState] = ()
    shards: Sequence[ShardState] = ()
    requests: Mapping[tuple[str, ...], int] = {}
    stalls: Mapping[str, Stalls] = {}
    version: str = ""


RESULTS = MetricTable[int](
    ("controller", "result"),
    (
        CounterMetric(
            "controller_runtime_reconcile_total",
            "Syncs, by how they ended: success, requeue_after or error.",
            float,
        ),
    ),
)

SYNCS = MetricTable[Counts](
    ("controller",),
    (
        CounterMetric(
            "controller_runtime_reconcile_errors_total",
            "Syncs that failed.",
            lambda syncs: syncs.failed,
        ),
        CounterMetric(
            "controller_runtime_terminal_reconcile_errors_total",
            "Syncs that failed and are not retried until the object changes.",
            lambda syncs: syncs.final,
        ),
        CounterMetric(
            "controller_runtime_reconcile_timeouts_total",
            "Syncs that failed because they took too long.",
            lambda syncs: syncs.timeouts,
        ),
        HistogramMetric(
            "controller_runtime_reconcile_time_seconds",
            "How long syncs take, with the wait for their key's last writes.",
            lambda syncs: syncs.duration_s,
        ),
        HistogramMetric(
            "natsctl_convergence_seconds",
            "From when a change of a primary was seen until a sync of it succeeded.",
            lambda syncs: syncs.convergence_s,
        ),
        GaugeMetric(
            "natsctl_unanswered_changes",
            "Changed primaries that wait for a sync to succeed, but for those being synced.",
            lambda syncs: syncs.unanswered,
        ),
        GaugeMetric(
            "natsctl_oldest_unanswered_change_seconds",
            "For how long the first of these has been waiting; 0 where there is none.",
            lambda syncs: syncs.oldest_s,
        ),
    ),
)

UPKEEP = MetricTable[UpkeepMeasures](
    ("controller",),
    (
        CounterMetric(
            "natsctl_barrier_wait_seconds_total",
            "For how long syncs waited for the caches to show what their key wrote.",
            lambda upkeep: upkeep.barrier_waited_s,
        ),
        CounterMetric(
            "natsctl_barrier_timeouts_total",
            "How often that wait was given up, and the store read instead.",
            lambda upkeep: upkeep.barrier_timeouts,
        ),
        GaugeMetric(
            "natsctl_orphans",
            "Secondaries whose owner is gone, at the last sweep.",
            lambda upkeep: upkeep.orphans,
        ),
        GaugeMetric(
            "natsctl_garbage_collection_refused",
            "Whether the last sweep may not collect: natsctl gc plan says why.",
            lambda upkeep: upkeep.refused,
        ),
        CounterMetric(
            "natsctl_applies_undone_total",
            "How often others undid what was applied to an object of a cluster.",
            lambda upkeep: upkeep.undone,
        ),
        GaugeMetric(
            "natsctl_contested_keys",
            "Keys with objects of a cluster that others change back again and again.",
            lambda upkeep: upkeep.contested,
        ),
    ),
)

CONTROLLERS = MetricTable[Measures](
    ("controller",),
    (
        GaugeMetric(
            "natsctl_controller_synced",
            "Whether the controller has begun to sync.",
            lambda controller: controller.synced,
        ),
        GaugeMetric(
            "controller_runtime_max_concurrent_reconciles",
            "How many keys the controller syncs at once at most.",
            lambda controller: sum(queue.workers for queue in controller.queues),
        ),
        GaugeMetric(
            "controller_runtime_active_workers",
            "How many keys are being synced.",
            lambda controller: sum(queue.stats.held for queue in controller.queues),
        ),
    ),
)

QUEUES = MetricTable[QueueMeasures](
    ("name", "controller"),
    (
        GaugeMetric(
            "workqueue_depth",
            "Keys that are due, those among them that are being synced and were added again.",
            lambda queue: queue.stats.depth,
        ),
        CounterMetric(
            "workqueue_adds_total",
            "How often a key that was not due was added.",
            lambda queue: queue.stats.adds,
        ),
        CounterMetric(
            "workqueue_retries_total",
            "How often a key was added with a delay: retries, and syncs asked for later.",
            lambda queue: queue.stats.retries,
        ),
        HistogramMetric(
            "workqueue_queue_duration_seconds",
            "How long keys are due before a worker takes them.",
            lambda queue: queue.stats.latency_s,
        ),
        HistogramMetric(
            "workqueue_work_duration_seconds",
            "How long keys are held.",
            lambda queue: queue.stats.work_s,
        ),
        GaugeMetric(
            "workqueue_unfinished_work_seconds",
            "For how long the keys that are held have been held, together.",
            lambda queue: queue.stats.unfinished_s,
        ),
        GaugeMetric(
            "workqueue_longest_running_processor_seconds",
            "For how long the key that is held the longest has been held.",
            lambda queue: queue.stats.longest_s,
        ),
        GaugeMetric(
            "natsctl_workqueue_waiting",
            "Keys that wait for their time: retries, and visits asked for later.",
            lambda queue: queue.stats.waiting,
        ),
    ),
)

CACHES = MetricTable[CacheMeasures](
    ("controller", "slot", "kind"),
    (
        GaugeMetric(
            "natsctl_cache_complete",
            "Whether the cache has seen a whole listing.",
            lambda cache: cache.complete,
        ),
        GaugeMetric(
            "natsctl_watch_up",
            "Whether the cache is complete and has a watch.",
            lambda cache: cache.complete and not cache.failure,
        ),
        CounterMetric(
            "natsctl_watch_restarts_total",
            "How often the watch broke and was begun anew.",
            lambda cache: cache.restarts,
        ),
        GaugeMetric("natsctl_cache_objects", "Objects in the cache.", lambda cache: cache.objects),
        GaugeMetric(
            "natsctl_cache_revision",
            "The revision up to which the cache shows every write.",
            lambda cache: cache.revision,
        ),
        GaugeMetric(
            "natsctl_invalid_objects",
            "Objects whose newest state is invalid, and left alone.",
            lambda cache: cache.invalid,
        ),
    ),
)

LAGS = MetricTable[int](
    ("controller", "slot", "kind"),
    (
        GaugeMetric(
            "natsctl_cache_lag_revisions",
            "By how many revisions the cache is behind its bucket; absent while that is unknown.",
            float,
        ),
    ),
)

CONNECTION = MetricTable[ConnectionState](
    (),
    (
        GaugeMetric(
            "natsctl_connection_up",
            "Whether the connection to NATS stands.",
            lambda connection: connection.connected,
        ),
        CounterMetric(
            "natsctl_connection_losses_total",
            "How often the connection to NATS was lost.",
            lambda connection: connection.losses,
        ),
        CounterMetric(
            "natsctl_connection_errors_total",
            "Errors that the connection to NATS met in the background.",
            lambda connection: connection.errors,
        ),
    ),
)

REQUESTS = MetricTable[int](
    ("code", "method", "host"),
    (
        CounterMetric(
            "rest_client_requests_total",
            "Requests to a cluster, by the status of the answer, or <error> where none came.",
            float,
        ),
    ),
)

ELECTIONS = MetricTable[ElectionState](
    ("name",),
    (
        GaugeMetric(
            "leader_election_master_status",
            "Whether this process leads the controller of that name.",
            lambda election: election.leads,
        ),
        GaugeMetric(
            "natsctl_lease_known",
            "Whether the lease could be read or written when that was last tried.",
            lambda election: election.known,
        ),
        GaugeMetric(
            "natsctl_lease_epoch",
            "The epoch of the term; grows from leader to leader. Absent on standby.",
            lambda election: election.epoch,
        ),
    ),
)

SHARDS = MetricTable[ShardState](
    ("name",),
    (
        GaugeMetric(
            "natsctl_shard_members",
            "How many members share the controller's keys, by this one's view; 0 before it joins.",
            lambda shard: len(shard.members),
        ),
        GaugeMetric(
            "natsctl_shard_moving",
            "Whether this process waits until keys are given up, to work by another view.",
            lambda shard: shard.moving,
        ),
    ),
)

STALLS = MetricTable[Stalls](
    ("controller",),
    (
        CounterMetric(
            "natsctl_event_loop_blocked_total",
            "How often a handler blocked the event loop for longer than a second.",
            lambda stalls: stalls.count,
        ),
        CounterMetric(
            "natsctl_event_loop_blocked_seconds_total",
            "For how long handlers blocked the event loop then, together.",
            lambda stalls: stalls.seconds,
        ),
    ),
)

BUILD = MetricTable[str](
    ("version",),
    (GaugeMetric("natsctl_build_info", "One, for the version that runs.", lambda _: 1),),
)


def families(scrape: Scrape) -> list[Family]:
    """Return every metric, with the numbers of this scrape."""
    each = {measures.controller: measures for measures in scrape.measures}
    syncs = {name: of.syncs for name, of in each.items() if of.syncs is not None}
    return [
        *RESULTS.of(
            {(name, result): n for name, of in syncs.items() for result, n in _results(of)}
        ),
        *SYNCS.of({(name,): of for name, of in syncs.items()}),
        *UPKEEP.of({(n,): of.upkeep for n, of in each.items() if of.upkeep is not None}),
        *CONTROLLERS.of({(name,): of for name, of in each.items()}),
        *QUEUES.of({(at.name, name): at for name, of in each.items() for at in of.queues}),
        *CACHES.of({(name, at.slot, at.kind): at for name, of in each.items() for at in of.caches}),
        *LAGS.of(_lags(scrape)),
        *CONNECTION.of({} if scrape.connection is None else {(): scrape.connection}),
        *REQUESTS.of(scrape.requests),
        *ELECTIONS.of({(election.name,): election for election in scrape.elections}),
        *SHARDS.of({(shard.name,): shard for shard in scrape.shards}),
        *STALLS.of({(n,): of for n, of in {**_unblocked(each), **scrape.stalls}.items()}),
        *BUILD.of({(scrape.version,): scrape.version}),
    ]


def _results(syncs: Counts) -> list[tuple[str, int]]:
    return [
        ("success", syncs.succeeded),
        ("requeue_after", syncs.asked),
        ("error", syncs.failed),
    ]


def _unblocked(controllers: Iterable[str]) -> dict[str, Stalls]:
    """Return that these controllers have not blocked the event loop."""
    return dict.fromkeys(controllers, Stalls())


def _lags(scrape: Scrape) -> dict[tuple[str, ...], int]:
    return {
        (of.controller, at.slot, at.kind): scrape.lags[of.controller][at.slot]
        for of in scrape.measures
        for at in of.caches
        if at.slot in scrape.lags.get(of.controller, {})
    }
