"""Managed: an object here stands for a resource in an outside system that cannot be watched.

The resource is observed, and created, updated or deleted, as the object says; by hand-written
clients of the outside system, and with nothing left over or made twice when something breaks.

Seed: krateo provider-runtime `reconciler`, which is Crossplane's.
"""

from natsctl.managed.conditions import Condition
from natsctl.managed.controller import ManagedController
from natsctl.managed.critical import (
    CriticalAnnotationUpdateFn,
    CriticalAnnotationUpdater,
    RetryingCriticalAnnotationUpdater,
)
from natsctl.managed.external import (
    ExternalClient,
    ExternalClientFns,
    ExternalConnectDisconnecter,
    ExternalConnectDisconnecterFns,
    ExternalConnecter,
    ExternalConnectorFn,
    ExternalDisconnecter,
    ExternalDisconnectorFn,
    NopClient,
    NopConnecter,
    NopDisconnecter,
    Observation,
)
from natsctl.managed.names import (
    FINALIZER_NAME,
    KRATEO,
    AnnotationNames,
    controller_name,
)
from natsctl.managed.objects import Managed
from natsctl.managed.polling import PollIntervalHook
from natsctl.managed.reconciler import ManagedReconciler

__all__ = [
    "FINALIZER_NAME",
    "KRATEO",
    "AnnotationNames",
    "Condition",
    "CriticalAnnotationUpdateFn",
    "CriticalAnnotationUpdater",
    "ExternalClient",
    "ExternalClientFns",
    "ExternalConnectDisconnecter",
    "ExternalConnectDisconnecterFns",
    "ExternalConnecter",
    "ExternalConnectorFn",
    "ExternalDisconnecter",
    "ExternalDisconnectorFn",
    "Managed",
    "ManagedController",
    "ManagedReconciler",
    "NopClient",
    "NopConnecter",
    "NopDisconnecter",
    "Observation",
    "PollIntervalHook",
    "RetryingCriticalAnnotationUpdater",
    "controller_name",
]
