"""Watchers: told of every add, update and delete, and told again where they failed.

Seed: grafana-app-sdk operator v0.9.10.
"""

from natsctl.watchers.controller import InformerController
from natsctl.watchers.opinionated import (
    FinalizerSupplier,
    OpinionatedWatcher,
    default_finalizer_supplier,
)
from natsctl.watchers.retries import (
    DEFAULT_RETRY_POLICY,
    RetryDequeuePolicy,
    exponential_backoff_retry_policy,
    opinionated_retry_dequeue_policy,
)
from natsctl.watchers.watcher import (
    RecallingWatcher,
    ResourceAction,
    ResourceWatcher,
    SimpleWatcher,
    Snapshot,
)

__all__ = [
    "DEFAULT_RETRY_POLICY",
    "FinalizerSupplier",
    "InformerController",
    "OpinionatedWatcher",
    "RecallingWatcher",
    "ResourceAction",
    "ResourceWatcher",
    "RetryDequeuePolicy",
    "SimpleWatcher",
    "Snapshot",
    "default_finalizer_supplier",
    "exponential_backoff_retry_policy",
    "opinionated_retry_dequeue_policy",
]
