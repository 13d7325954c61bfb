"""The metrics of a scrape: their names, labels, sources and meanings.

Metrics that controller-runtime and client-go have use their names and labels, so that dashboards
for them also show natsctl. The names of other metrics begin with `natsctl_`. A scrape reads each
number from the part that counts it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from natsctl.core.coordination.shares import ShareState
from natsctl.core.reports import Measures
from natsctl.daemon.watchdog import Stalls
from natsctl.jetstream.connection import ConnectionState
from natsctl.telemetry.histogram import Distribution

if TYPE_CHECKING:
    from natsctl.kubernetes.cluster import Kube

Family: TypeAlias = Metric

_FAMILIES = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_METRIC = re.compile(r"^(\w+) (\w+)\{(.*)\} (\S+)\s+(.*(?:\n +.*)*)", re.MULTILINE)

TABLE = """
counter controller_runtime_reconcile_total{controller,result} -
    Syncs by result: success, requeue_after or error.
counter natsctl_planned_changes_total{controller,action,kind} controller.planned
    Changes that a controller would have made that only plans (run --dry-run).
counter natsctl_events_total{controller,system,outcome} controller.events
    Events by system and outcome: sent, merged into another one as repeats, or dropped.
counter controller_runtime_reconcile_errors_total{controller} controller.syncs.failed
    Syncs that failed.
counter controller_runtime_terminal_reconcile_errors_total{controller} controller.syncs.final
    Syncs that failed and are not retried until the object changes.
counter controller_runtime_reconcile_timeouts_total{controller} controller.syncs.timeouts
    Syncs that failed because they took too long.
gauge natsctl_unanswered_changes{controller} controller.syncs.unanswered
    Changed primaries that wait for a successful sync and are not being synced.
gauge natsctl_oldest_unanswered_change_seconds{controller} controller.syncs.oldest_s
    Time since the oldest unanswered change; 0 if there is none.
histogram controller_runtime_reconcile_time_seconds{controller} controller.syncs.duration_s
    Duration of syncs, including the wait for the last writes of the key.
histogram natsctl_convergence_seconds{controller} controller.syncs.convergence_s
    Time from a change of a primary until a sync of the primary succeeds.
counter natsctl_barrier_wait_seconds_total{controller} controller.upkeep.barrier_waited_s
    Time that syncs waited for the caches to show the last writes of their key.
counter natsctl_barrier_timeouts_total{controller} controller.upkeep.barrier_timeouts
    Waits that timed out, so that the sync read the store instead.
counter natsctl_applies_undone_total{controller} controller.upkeep.undone
    Times that another writer reverted an applied manifest.
gauge natsctl_orphans{controller} controller.upkeep.orphans
    Secondaries without an owner in the last GC cycle.
gauge natsctl_garbage_collection_refused{controller} controller.upkeep.refused
    1 if the last GC cycle was not allowed to delete; natsctl gc plan prints the reason.
gauge natsctl_contested_keys{controller} controller.upkeep.contested
    Keys whose manifests another writer reverts repeatedly.
gauge natsctl_controller_synced{controller} controller.synced
    1 if the controller has started to sync.
gauge natsctl_controller_paused{controller} controller.paused
    1 if the whole controller is paused.
gauge natsctl_paused_keys{controller} controller.paused_keys
    Paused keys, without those of a controller that is paused as a whole.
gauge natsctl_recordings_bytes{controller} controller.recordings_bytes
    Memory of the recordings of syncs; the oldest are dropped at the limit.
gauge natsctl_failing_keys{controller} controller.health.failing
    Keys of this process whose last sync failed, also in an earlier process.
gauge natsctl_oldest_failure_seconds{controller} -
    Time since the first failure of the key that fails the longest; 0 if no key fails.
gauge natsctl_invalid_keys{controller} controller.health.invalid
    Primaries of this process whose newest state is invalid and therefore skipped.
gauge natsctl_quarantined_keys{controller} controller.health.quarantined
    Keys that are not synced because processes died during their syncs.
gauge natsctl_overdue_keys{controller} controller.health.overdue
    Keys whose change has waited for more than five minutes, and that do not fail.
gauge natsctl_unhealthy_keys{controller} controller.health.unhealthy
    Keys that fail, are invalid, quarantined or overdue; each counts once.
gauge controller_runtime_max_concurrent_reconciles{controller} -
    Maximum number of keys that the controller syncs concurrently.
gauge controller_runtime_active_workers{controller} -
    Keys that are being synced.
counter workqueue_adds_total{name,controller} queue.stats.adds
    Times that a key was added that was not due.
counter workqueue_retries_total{name,controller} queue.stats.retries
    Times that a key was added with a delay: retries and delayed syncs.
gauge workqueue_depth{name,controller} queue.stats.depth
    Keys that are due, including keys that were added again during their sync.
gauge workqueue_unfinished_work_seconds{name,controller} queue.stats.unfinished_s
    Sum of the times that the held keys have been held.
gauge workqueue_longest_running_processor_seconds{name,controller} queue.stats.longest_s
    Longest time that a key has been held.
gauge natsctl_workqueue_waiting{name,controller} queue.stats.waiting
    Keys that are not due yet: retries and delayed syncs.
histogram workqueue_queue_duration_seconds{name,controller} queue.stats.latency_s
    Time from when a key is due until a worker takes it.
histogram workqueue_work_duration_seconds{name,controller} queue.stats.work_s
    Time that a worker holds a key.
counter natsctl_watch_restarts_total{controller,slot,kind} cache.restarts
    Times that the watch broke and was established again.
gauge natsctl_cache_complete{controller,slot,kind} cache.synced
    1 if the cache is synced: it has seen a complete listing.
gauge natsctl_watch_up{controller,slot,kind} -
    1 if the cache is synced and has a watch.
gauge natsctl_cache_objects{controller,slot,kind} cache.objects
    Objects in the cache.
gauge natsctl_cache_revision{controller,slot,kind} cache.revision
    Revision up to which the cache shows all writes.
gauge natsctl_invalid_objects{controller,slot,kind} cache.invalid
    Objects whose newest state is invalid and therefore skipped.
gauge natsctl_cache_lag_revisions{controller,slot,kind} -
    Revisions that the cache lags behind its bucket; absent if unknown.
counter natsctl_connection_losses_total{} connection.losses
    Times that the connection to NATS was lost.
counter natsctl_connection_errors_total{} connection.errors
    Asynchronous errors of the connection to NATS.
gauge natsctl_connection_up{} connection.connected
    1 if the process is connected to NATS.
counter rest_client_requests_total{code,method,host} cluster.requests
    Requests to a cluster by status; <error> if there was no response.
histogram rest_client_request_duration_seconds{verb,host} cluster.times
    Time until a cluster began its response, or until the request was given up.
gauge leader_election_master_status{name} election.works
    1 if this process is the leader of the controller with this name.
gauge natsctl_lease_known{name} election.known
    1 if the last read or write of the lease succeeded.
gauge natsctl_lease_epoch{name} election.epoch
    Epoch of the term, which grows with each leader; absent on standby.
gauge natsctl_shard_members{name} shard.members
    Members in this member's view of the group; 0 before it joins.
gauge natsctl_shard_moving{name} shard.moving
    1 if this process waits for a rebalance.
counter natsctl_event_loop_blocked_total{controller} stalls.count
    Times that a handler blocked the event loop for longer than a second.
counter natsctl_event_loop_blocked_seconds_total{controller} stalls.seconds
    Total time that handlers blocked the event loop for longer than a second.
gauge natsctl_build_info{version} -
    1, with the version as a label.
"""
"""Of each metric: its type, its name, the names of its labels, where its value is, its meaning."""


class _Page:
    """All metrics of the table, to which values are added; None, which isn't known, is left out."""

    def __init__(self) -> None:
        self.families: dict[str, Family] = {}
        self._sources: dict[str, list[tuple[str, int, list[str]]]] = {}
        for kind, name, labels, source, meaning in _METRIC.findall(TABLE):
            names = labels.split(",") * bool(labels)
            self.families[name] = _FAMILIES[kind](name, " ".join(meaning.split()), labels=names)
            place, *path = source.split(".")
            self._sources.setdefault(place, []).append((name, len(names), path))

    def read(self, place: str, part: object, *labels: str) -> None:
        for name, labelled, path in self._sources[place]:
            value: Any = part
            for attribute in path:
                value = None if value is None else getattr(value, attribute)
                value = value() if callable(value) else value
            if labelled > len(labels):
                for further, number in value.items():
                    self.add(name, number, *labels, *further)
            else:
                is_counted = isinstance(value, Collection)
                self.add(name, len(value) if is_counted else value, *labels)

    def add(self, name: str, value: float | Distribution | None, *labels: str) -> None:
        family: Any = self.families[name]
        if isinstance(value, Distribution):
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            counts = list(zip(bounds, accumulate(value.counts), strict=True))
            family.add_metric(labels, counts, value.sum)
        elif value is not None:
            family.add_metric(labels, value)


def families(
    measured: Sequence[tuple[Measures, Mapping[str, int]]] = (),
    *,
    stalls: Mapping[str, Stalls],
    connection: ConnectionState | None = None,
    shares: Sequence[ShareState] = (),
    cluster: "Kube | None" = None,
) -> list[Family]:
    """Return all metrics with the numbers of this scrape; those without one are there too.

    *measured* has the measures of each controller with the known lags of its caches in revisions,
    by slot. *stalls* are the times that handlers blocked the event loop, by controller.
    """
    page = _Page()
    for measures, lags in measured:
        name = measures.controller
        page.read("controller", measures, name)
        oldest_s = measures.health.oldest_failure_s or 0.0
        page.add("natsctl_oldest_failure_seconds", oldest_s, name)
        if (syncs := measures.syncs) is not None:
            results = {
                "success": syncs.succeeded,
                "requeue_after": syncs.delayed,
                "error": syncs.failed,
            }
            for result, count in results.items():
                page.add("controller_runtime_reconcile_total", count, name, result)
        workers = sum(queue.workers for queue in measures.queues)
        page.add("controller_runtime_max_concurrent_reconciles", workers, name)
        held = sum(queue.stats.held for queue in measures.queues)
        page.add("controller_runtime_active_workers", held, name)
        for queue in measures.queues:
            page.read("queue", queue, queue.name, name)
        for cache in measures.caches:
            at = (name, cache.slot, cache.kind)
            page.read("cache", cache, *at)
            page.add("natsctl_watch_up", cache.synced and not cache.failure, *at)
            page.add("natsctl_cache_lag_revisions", lags.get(cache.slot), *at)
    if connection is not None:
        page.read("connection", connection)
    if cluster is not None:
        page.read("cluster", cluster)
    for state in shares:
        page.read("election" if state.count == 1 else "shard", state, state.name)
    none = {measures.controller: Stalls() for measures, _ in measured}
    for controller, stalled in {**none, **stalls}.items():
        page.read("stalls", stalled, controller)
    page.add("natsctl_build_info", 1, version("natsctl"))
    return list(page.families.values())


def exposition(families: Iterable[Family], accept: str = "") -> tuple[bytes, str]:
    """Return the page for Prometheus and its content type, which depends on *accept*.

    The page includes prometheus-client's own registry: the metrics of the process and of Python,
    and metrics that handlers register there.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_Collected([*families, *REGISTRY.collect()])), content_type


class _Collected(list[Family], Collector):
    def collect(self) -> Iterable[Family]:
        return self
