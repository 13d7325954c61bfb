"""The metrics of a scrape: their names, labels and meanings.

Metrics that controller-runtime and client-go have use their names and labels, so that dashboards
for them also show natsctl. The names of other metrics begin with `natsctl_`. A scrape reads each
number from the part that counts it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import msgspec
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
from natsctl.core.status import Measures
from natsctl.daemon.watchdog import Stalls
from natsctl.jetstream.connection import ConnectionState
from natsctl.telemetry.histogram import Distribution

Family: TypeAlias = Metric
Labels: TypeAlias = tuple[str, ...]
"""The values of labels, in the order of their names."""

_FAMILIES = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
_METRIC = re.compile(r"^(\w+) (\w+)\{(.*)\}\s+(.*(?:\n +.*)*)", re.MULTILINE)


class Page:
    """The metrics of a table, to which values are added.

    A metric of the *table* is its type, its name with the names of its labels, and its meaning,
    such as `gauge queue_depth{controller} Keys that are due.` It's on the page without values, too.
    """

    def __init__(self, table: str) -> None:
        self._families: dict[str, Family] = {
            name: _FAMILIES[kind](
                name, " ".join(meaning.split()), labels=labels.split(",") * bool(labels)
            )
            for kind, name, labels, meaning in _METRIC.findall(table)
        }

    @property
    def families(self) -> list[Family]:
        """All metrics of the table with the values that were added."""
        return list(self._families.values())

    def add(self, name: str, value: float | Distribution | None, *labels: str) -> None:
        """Add a value; None, which isn't known, is left out."""
        family: Any = self._families[name]
        if isinstance(value, Distribution):
            bounds = [*map(floatToGoString, value.bounds), "+Inf"]
            counts = list(zip(bounds, accumulate(value.counts), strict=True))
            family.add_metric(labels, counts, value.sum)
        elif value is not None:
            family.add_metric(labels, value)


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


TABLE = """
counter controller_runtime_reconcile_total{controller,result}
    Syncs by result: success, requeue_after or error.
counter natsctl_planned_changes_total{controller,action,kind}
    Changes that a controller would have made that only plans (run --dry-run).
counter natsctl_events_total{controller,system,outcome}
    Events by system and outcome: sent, merged into another one as repeats, or dropped.
counter controller_runtime_reconcile_errors_total{controller} Syncs that failed.
counter controller_runtime_terminal_reconcile_errors_total{controller}
    Syncs that failed and are not retried until the object changes.
counter controller_runtime_reconcile_timeouts_total{controller}
    Syncs that failed because they took too long.
gauge natsctl_unanswered_changes{controller}
    Changed primaries that wait for a successful sync and are not being synced.
gauge natsctl_oldest_unanswered_change_seconds{controller}
    Time since the oldest unanswered change; 0 if there is none.
histogram controller_runtime_reconcile_time_seconds{controller}
    Duration of syncs, including the wait for the last writes of the key.
histogram natsctl_convergence_seconds{controller}
    Time from a change of a primary until a sync of the primary succeeds.
counter natsctl_barrier_wait_seconds_total{controller}
    Time that syncs waited for the caches to show the last writes of their key.
counter natsctl_barrier_timeouts_total{controller}
    Waits that timed out, so that the sync read the store instead.
counter natsctl_applies_undone_total{controller}
    Times that another writer reverted an applied manifest.
gauge natsctl_orphans{controller} Secondaries without an owner in the last GC cycle.
gauge natsctl_garbage_collection_refused{controller}
    1 if the last GC cycle was not allowed to delete; natsctl gc plan prints the reason.
gauge natsctl_contested_keys{controller} Keys whose manifests another writer reverts repeatedly.
gauge natsctl_controller_synced{controller} 1 if the controller has started to sync.
gauge natsctl_controller_paused{controller} 1 if the whole controller is paused.
gauge natsctl_paused_keys{controller}
    Paused keys, without those of a controller that is paused as a whole.
gauge natsctl_recordings_bytes{controller}
    Memory of the recordings of syncs; the oldest are dropped at the limit.
gauge natsctl_failing_keys{controller}
    Keys of this process whose last sync failed, also in an earlier process.
gauge natsctl_oldest_failure_seconds{controller}
    Time since the first failure of the key that fails the longest; 0 if no key fails.
gauge natsctl_invalid_keys{controller}
    Primaries of this process whose newest state is invalid and therefore skipped.
gauge natsctl_quarantined_keys{controller}
    Keys that are not synced because processes died during their syncs.
gauge natsctl_overdue_keys{controller}
    Keys whose change has waited for more than five minutes, and that do not fail.
gauge natsctl_unhealthy_keys{controller}
    Keys that fail, are invalid, quarantined or overdue; each counts once.
gauge controller_runtime_max_concurrent_reconciles{controller}
    Maximum number of keys that the controller syncs concurrently.
gauge controller_runtime_active_workers{controller} Keys that are being synced.
counter workqueue_adds_total{name,controller} Times that a key was added that was not due.
counter workqueue_retries_total{name,controller}
    Times that a key was added with a delay: retries and delayed syncs.
gauge workqueue_depth{name,controller}
    Keys that are due, including keys that were added again during their sync.
gauge workqueue_unfinished_work_seconds{name,controller}
    Sum of the times that the held keys have been held.
gauge workqueue_longest_running_processor_seconds{name,controller}
    Longest time that a key has been held.
gauge natsctl_workqueue_waiting{name,controller}
    Keys that are not due yet: retries and delayed syncs.
histogram workqueue_queue_duration_seconds{name,controller}
    Time from when a key is due until a worker takes it.
histogram workqueue_work_duration_seconds{name,controller} Time that a worker holds a key.
counter natsctl_watch_restarts_total{controller,slot,kind}
    Times that the watch broke and was established again.
gauge natsctl_cache_complete{controller,slot,kind}
    1 if the cache is synced: it has seen a complete listing.
gauge natsctl_watch_up{controller,slot,kind} 1 if the cache is synced and has a watch.
gauge natsctl_cache_objects{controller,slot,kind} Objects in the cache.
gauge natsctl_cache_revision{controller,slot,kind} Revision up to which the cache shows all writes.
gauge natsctl_invalid_objects{controller,slot,kind}
    Objects whose newest state is invalid and therefore skipped.
gauge natsctl_cache_lag_revisions{controller,slot,kind}
    Revisions that the cache lags behind its bucket; absent if unknown.
counter natsctl_connection_losses_total{} Times that the connection to NATS was lost.
counter natsctl_connection_errors_total{} Asynchronous errors of the connection to NATS.
gauge natsctl_connection_up{} 1 if the process is connected to NATS.
counter rest_client_requests_total{code,method,host}
    Requests to a cluster by status; <error> if there was no response.
histogram rest_client_request_duration_seconds{verb,host}
    Time until a cluster began its response, or until the request was given up.
gauge leader_election_master_status{name}
    1 if this process is the leader of the controller with this name.
gauge natsctl_lease_known{name} 1 if the last read or write of the lease succeeded.
gauge natsctl_lease_epoch{name} Epoch of the term, which grows with each leader; absent on standby.
gauge natsctl_shard_members{name} Members in this member's view of the group; 0 before it joins.
gauge natsctl_shard_moving{name} 1 if this process waits for a rebalance.
counter natsctl_event_loop_blocked_total{controller}
    Times that a handler blocked the event loop for longer than a second.
counter natsctl_event_loop_blocked_seconds_total{controller}
    Total time that handlers blocked the event loop for longer than a second.
gauge natsctl_build_info{version} 1, with the version as a label.
"""


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


def families(scrape: Scrape) -> list[Family]:
    """Return all metrics with the numbers of this scrape."""
    page = Page(TABLE)
    for measures in scrape.measures:
        _add_syncs(page, measures)
        _add_controller(page, measures, scrape.lags.get(measures.controller, {}))
    if (connection := scrape.connection) is not None:
        page.add("natsctl_connection_losses_total", connection.losses)
        page.add("natsctl_connection_errors_total", connection.errors)
        page.add("natsctl_connection_up", connection.connected)
    for labels, requests in scrape.requests.items():
        page.add("rest_client_requests_total", requests, *labels)
    for labels, times in scrape.times.items():
        page.add("rest_client_request_duration_seconds", times, *labels)
    for election in scrape.elections:
        page.add("leader_election_master_status", election.works, election.name)
        page.add("natsctl_lease_known", election.known, election.name)
        page.add("natsctl_lease_epoch", election.epoch, election.name)
    for shard in scrape.shards:
        page.add("natsctl_shard_members", len(shard.members), shard.name)
        page.add("natsctl_shard_moving", shard.moving, shard.name)
    none = {measures.controller: Stalls() for measures in scrape.measures}
    for controller, stalls in {**none, **scrape.stalls}.items():
        page.add("natsctl_event_loop_blocked_total", stalls.count, controller)
        page.add("natsctl_event_loop_blocked_seconds_total", stalls.seconds, controller)
    page.add("natsctl_build_info", 1, scrape.version)
    return page.families


def _add_syncs(page: Page, measures: Measures) -> None:
    name = measures.controller
    if (syncs := measures.syncs) is not None:
        page.add("controller_runtime_reconcile_total", syncs.succeeded, name, "success")
        page.add("controller_runtime_reconcile_total", syncs.delayed, name, "requeue_after")
        page.add("controller_runtime_reconcile_total", syncs.failed, name, "error")
        page.add("controller_runtime_reconcile_errors_total", syncs.failed, name)
        page.add("controller_runtime_terminal_reconcile_errors_total", syncs.final, name)
        page.add("controller_runtime_reconcile_timeouts_total", syncs.timeouts, name)
        page.add("controller_runtime_reconcile_time_seconds", syncs.duration_s, name)
        page.add("natsctl_unanswered_changes", syncs.unanswered, name)
        page.add("natsctl_oldest_unanswered_change_seconds", syncs.oldest_s, name)
        page.add("natsctl_convergence_seconds", syncs.convergence_s, name)
    if (upkeep := measures.upkeep) is not None:
        page.add("natsctl_barrier_wait_seconds_total", upkeep.barrier_waited_s, name)
        page.add("natsctl_barrier_timeouts_total", upkeep.barrier_timeouts, name)
        page.add("natsctl_applies_undone_total", upkeep.undone, name)
        page.add("natsctl_orphans", upkeep.orphans, name)
        page.add("natsctl_garbage_collection_refused", upkeep.refused, name)
        page.add("natsctl_contested_keys", upkeep.contested, name)


def _add_controller(page: Page, measures: Measures, lags: Mapping[str, int]) -> None:
    name, health, queues = measures.controller, measures.health, measures.queues
    page.add("natsctl_controller_synced", measures.synced, name)
    page.add("natsctl_controller_paused", measures.paused, name)
    page.add("natsctl_paused_keys", measures.paused_keys, name)
    page.add("natsctl_recordings_bytes", measures.recordings_bytes, name)
    page.add("natsctl_failing_keys", len(health.failing), name)
    page.add("natsctl_oldest_failure_seconds", health.oldest_failure_s or 0.0, name)
    page.add("natsctl_invalid_keys", len(health.invalid), name)
    page.add("natsctl_quarantined_keys", len(health.quarantined), name)
    page.add("natsctl_overdue_keys", len(health.overdue), name)
    page.add("natsctl_unhealthy_keys", health.unhealthy, name)
    workers, held = (queue.workers for queue in queues), (queue.stats.held for queue in queues)
    page.add("controller_runtime_max_concurrent_reconciles", sum(workers), name)
    page.add("controller_runtime_active_workers", sum(held), name)
    for change, count in measures.planned.items():
        page.add("natsctl_planned_changes_total", count, name, *change)
    for event, count in measures.events.items():
        page.add("natsctl_events_total", count, name, *event)
    for queue in queues:
        of, stats = (queue.name, name), queue.stats
        page.add("workqueue_adds_total", stats.adds, *of)
        page.add("workqueue_retries_total", stats.retries, *of)
        page.add("workqueue_depth", stats.depth, *of)
        page.add("workqueue_unfinished_work_seconds", stats.unfinished_s, *of)
        page.add("workqueue_longest_running_processor_seconds", stats.longest_s, *of)
        page.add("natsctl_workqueue_waiting", stats.waiting, *of)
        page.add("workqueue_queue_duration_seconds", stats.latency_s, *of)
        page.add("workqueue_work_duration_seconds", stats.work_s, *of)
    for cache in measures.caches:
        at = (name, cache.slot, cache.kind)
        page.add("natsctl_watch_restarts_total", cache.restarts, *at)
        page.add("natsctl_cache_complete", cache.synced, *at)
        page.add("natsctl_watch_up", cache.synced and not cache.failure, *at)
        page.add("natsctl_cache_objects", cache.objects, *at)
        page.add("natsctl_cache_revision", cache.revision, *at)
        page.add("natsctl_invalid_objects", cache.invalid, *at)
        page.add("natsctl_cache_lag_revisions", lags.get(cache.slot), *at)
