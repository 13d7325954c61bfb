"""DynamicWatcher: watches of single objects, for whoever depends on them at the moment.

One change's journey: the watch of an object, shared by all who watch it, sees the change and adds
each of these watchers to the workqueue, once. A worker takes one and calls the reconciler, which
may read objects in a query batch: what it reads is watched from then on, and what it does not read
any more is let go.

Seed: stolostron kubernetes-dependency-watches v0.5.2, for objects of Kubernetes and NATS alike.
"""

from natsctl.dynamic.cache import ObjectCache, Objects
from natsctl.dynamic.identifier import GroupVersionKind, ObjectIdentifier, kv_kind
from natsctl.dynamic.options import DynamicOptions, Reconcile, Reconciler
from natsctl.dynamic.resources import ObjectCacheOptions, ScopedGVR
from natsctl.dynamic.source import (
    ControllerRuntimeSourceReconciler,
    EventSource,
    GenericEvent,
    controller_runtime_source,
)
from natsctl.dynamic.watcher import DynamicWatcher

__all__ = [
    "ControllerRuntimeSourceReconciler",
    "DynamicOptions",
    "DynamicWatcher",
    "EventSource",
    "GenericEvent",
    "GroupVersionKind",
    "ObjectCache",
    "ObjectCacheOptions",
    "ObjectIdentifier",
    "Objects",
    "Reconcile",
    "Reconciler",
    "ScopedGVR",
    "controller_runtime_source",
    "kv_kind",
]
