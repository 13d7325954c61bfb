"""DynamicWatcher: watches single objects for the watchers that currently depend on them.

All watchers of an object share one watch. A change of the object adds each of its watchers to the
work queue once. A worker takes a watcher and calls the reconciler. The reconciler may read objects
in a query batch: the watcher then depends on these objects, and no longer on objects that it does
not read.

Seed: stolostron kubernetes-dependency-watches v0.5.2, for objects of Kubernetes and NATS alike.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsctl.dynamic.objects import GroupVersionKind as GroupVersionKind
    from natsctl.dynamic.objects import ObjectCache as ObjectCache
    from natsctl.dynamic.objects import ObjectCacheOptions as ObjectCacheOptions
    from natsctl.dynamic.objects import ObjectIdentifier as ObjectIdentifier
    from natsctl.dynamic.objects import Objects as Objects
    from natsctl.dynamic.objects import ScopedGVR as ScopedGVR
    from natsctl.dynamic.objects import kv_kind as kv_kind
    from natsctl.dynamic.watcher import (
        ControllerRuntimeSourceReconciler as ControllerRuntimeSourceReconciler,
    )
    from natsctl.dynamic.watcher import DynamicOptions as DynamicOptions
    from natsctl.dynamic.watcher import DynamicWatcher as DynamicWatcher
    from natsctl.dynamic.watcher import EventSource as EventSource
    from natsctl.dynamic.watcher import GenericEvent as GenericEvent
    from natsctl.dynamic.watcher import Reconcile as Reconcile
    from natsctl.dynamic.watcher import Reconciler as Reconciler
    from natsctl.dynamic.watcher import controller_runtime_source as controller_runtime_source
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__)
