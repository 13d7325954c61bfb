"""DynamicWatcher: watches of single objects, for whoever depends on them at the moment.

One change's journey: the watch of an object, shared by all who watch it, sees the change and adds
each of these watchers to the workqueue, once. A worker takes one and calls the reconciler, which
may read objects in a query batch: what it reads is watched from then on, and what it does not read
any more is let go.

Seed: stolostron kubernetes-dependency-watches v0.5.2, for objects of Kubernetes and NATS alike.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsctl.dynamic.cache import ObjectCache as ObjectCache
    from natsctl.dynamic.cache import Objects as Objects
    from natsctl.dynamic.identifier import GroupVersionKind as GroupVersionKind
    from natsctl.dynamic.identifier import ObjectIdentifier as ObjectIdentifier
    from natsctl.dynamic.identifier import kv_kind as kv_kind
    from natsctl.dynamic.options import DynamicOptions as DynamicOptions
    from natsctl.dynamic.options import Reconcile as Reconcile
    from natsctl.dynamic.options import Reconciler as Reconciler
    from natsctl.dynamic.resources import ObjectCacheOptions as ObjectCacheOptions
    from natsctl.dynamic.resources import ScopedGVR as ScopedGVR
    from natsctl.dynamic.source import (
        ControllerRuntimeSourceReconciler as ControllerRuntimeSourceReconciler,
    )
    from natsctl.dynamic.source import EventSource as EventSource
    from natsctl.dynamic.source import GenericEvent as GenericEvent
    from natsctl.dynamic.source import controller_runtime_source as controller_runtime_source
    from natsctl.dynamic.watcher import DynamicWatcher as DynamicWatcher
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__)
