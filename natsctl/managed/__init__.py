"""Managed: objects that stand for resources in an outside system that cannot be watched.

The reconciler observes the external resource, and creates, updates or deletes it as the object
declares, with a client that the user writes. A resource is neither created twice nor left over if a
reconciliation is interrupted.

Seed: krateo provider-runtime `reconciler`, which is Crossplane's.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsctl.managed.controller import ManagedController as ManagedController
    from natsctl.managed.external import ExternalClient as ExternalClient
    from natsctl.managed.external import ExternalClientFns as ExternalClientFns
    from natsctl.managed.external import ExternalConnectDisconnecter as ExternalConnectDisconnecter
    from natsctl.managed.external import (
        ExternalConnectDisconnecterFns as ExternalConnectDisconnecterFns,
    )
    from natsctl.managed.external import ExternalConnecter as ExternalConnecter
    from natsctl.managed.external import ExternalConnectorFn as ExternalConnectorFn
    from natsctl.managed.external import ExternalDisconnecter as ExternalDisconnecter
    from natsctl.managed.external import ExternalDisconnectorFn as ExternalDisconnectorFn
    from natsctl.managed.external import NopClient as NopClient
    from natsctl.managed.external import NopConnecter as NopConnecter
    from natsctl.managed.external import NopDisconnecter as NopDisconnecter
    from natsctl.managed.external import Observation as Observation
    from natsctl.managed.links import FINALIZER_NAME as FINALIZER_NAME
    from natsctl.managed.links import KRATEO as KRATEO
    from natsctl.managed.links import AnnotationNames as AnnotationNames
    from natsctl.managed.links import controller_name as controller_name
    from natsctl.managed.objects import Condition as Condition
    from natsctl.managed.objects import CriticalAnnotationUpdateFn as CriticalAnnotationUpdateFn
    from natsctl.managed.objects import CriticalAnnotationUpdater as CriticalAnnotationUpdater
    from natsctl.managed.objects import Managed as Managed
    from natsctl.managed.objects import (
        RetryingCriticalAnnotationUpdater as RetryingCriticalAnnotationUpdater,
    )
    from natsctl.managed.reconciler import ManagedReconciler as ManagedReconciler
    from natsctl.managed.reconciler import PollIntervalHook as PollIntervalHook
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__)
