"""Watchers: callbacks for every add, update and delete of an object, retried until they succeed.

Seed: grafana-app-sdk operator v0.9.10.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from natsctl.watchers.controller import InformerController as InformerController
    from natsctl.watchers.watcher import DEFAULT_RETRY_POLICY as DEFAULT_RETRY_POLICY
    from natsctl.watchers.watcher import FinalizerSupplier as FinalizerSupplier
    from natsctl.watchers.watcher import OpinionatedWatcher as OpinionatedWatcher
    from natsctl.watchers.watcher import RecallingWatcher as RecallingWatcher
    from natsctl.watchers.watcher import ResourceAction as ResourceAction
    from natsctl.watchers.watcher import ResourceWatcher as ResourceWatcher
    from natsctl.watchers.watcher import RetryDequeuePolicy as RetryDequeuePolicy
    from natsctl.watchers.watcher import SimpleWatcher as SimpleWatcher
    from natsctl.watchers.watcher import Snapshot as Snapshot
    from natsctl.watchers.watcher import (
        default_finalizer_supplier as default_finalizer_supplier,
    )
    from natsctl.watchers.watcher import (
        exponential_backoff_retry_policy as exponential_backoff_retry_policy,
    )
    from natsctl.watchers.watcher import (
        opinionated_retry_dequeue_policy as opinionated_retry_dequeue_policy,
    )
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__)
