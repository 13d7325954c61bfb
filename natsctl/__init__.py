"""natsctl: controllers whose primary resources live in NATS JetStream KV."""

from typing import TYPE_CHECKING

__version__ = "0.2.0"  # the only place with the version

if TYPE_CHECKING:
    from natsctl.controller.controller import Controller as Controller
    from natsctl.controller.controller import finalized as finalized
    from natsctl.controller.hook import HookController as HookController
    from natsctl.controller.hook import untyped as untyped
    from natsctl.controller.kube_secondary import KubeSecondary as KubeSecondary
    from natsctl.controller.owned import Secondary as Secondary
    from natsctl.controller.owners import KUMORI as KUMORI
    from natsctl.controller.owners import OwnerNames as OwnerNames
    from natsctl.controller.reads import Reads as Reads
    from natsctl.controller.runtime import ControllerRuntime as ControllerRuntime
    from natsctl.controller.slots import primary as primary
    from natsctl.controller.slots import secondary as secondary
    from natsctl.controller.slots import tertiary as tertiary
    from natsctl.core.environment import planning as planning
    from natsctl.core.readers import Primary as Primary
    from natsctl.core.readers import Tertiary as Tertiary
    from natsctl.core.retry import Drop as Drop
    from natsctl.core.retry import ExponentialLimiter as ExponentialLimiter
    from natsctl.core.retry import RateLimit as RateLimit
    from natsctl.core.retry import Retry as Retry
    from natsctl.core.retry import RetryPolicy as RetryPolicy
    from natsctl.core.retry import Stop as Stop
    from natsctl.core.retry import TokenBucket as TokenBucket
    from natsctl.core.retry import always_retry as always_retry
    from natsctl.core.retry import exponential as exponential
    from natsctl.core.retry import give_up_after as give_up_after
    from natsctl.core.retry import retry_up_to as retry_up_to
    from natsctl.core.sync import blocking as blocking
    from natsctl.core.table import Invalid as Invalid
    from natsctl.core.workqueue import Operation as Operation
    from natsctl.daemon.operator import Operator as Operator
    from natsctl.daemon.plan import plan as plan
    from natsctl.dynamic import *
    from natsctl.errors import CacheDisabledError as CacheDisabledError
    from natsctl.errors import ConflictError as ConflictError
    from natsctl.errors import ConnectError as ConnectError
    from natsctl.errors import EventNotDoneError as EventNotDoneError
    from natsctl.errors import ExistsError as ExistsError
    from natsctl.errors import FieldConflictError as FieldConflictError
    from natsctl.errors import HandlerError as HandlerError
    from natsctl.errors import HookError as HookError
    from natsctl.errors import ImmutableFieldError as ImmutableFieldError
    from natsctl.errors import InformerAlreadyAddedError as InformerAlreadyAddedError
    from natsctl.errors import InvalidInputError as InvalidInputError
    from natsctl.errors import InvalidKeyError as InvalidKeyError
    from natsctl.errors import InvalidObjectError as InvalidObjectError
    from natsctl.errors import NatsctlError as NatsctlError
    from natsctl.errors import NewerVersionError as NewerVersionError
    from natsctl.errors import NoCacheEntryError as NoCacheEntryError
    from natsctl.errors import NoDaemonError as NoDaemonError
    from natsctl.errors import NotFoundError as NotFoundError
    from natsctl.errors import NotLeadingError as NotLeadingError
    from natsctl.errors import NotRecordedError as NotRecordedError
    from natsctl.errors import NotStartedError as NotStartedError
    from natsctl.errors import NotStoredError as NotStoredError
    from natsctl.errors import NoVersionedResourceError as NoVersionedResourceError
    from natsctl.errors import PausedError as PausedError
    from natsctl.errors import PermanentError as PermanentError
    from natsctl.errors import PermissionDeniedError as PermissionDeniedError
    from natsctl.errors import PlanningError as PlanningError
    from natsctl.errors import QueryBatchInProgressError as QueryBatchInProgressError
    from natsctl.errors import QueryBatchNotStartedError as QueryBatchNotStartedError
    from natsctl.errors import QueueShutDownError as QueueShutDownError
    from natsctl.errors import RetryAfter as RetryAfter
    from natsctl.errors import StoppedError as StoppedError
    from natsctl.errors import StoreDiffersError as StoreDiffersError
    from natsctl.errors import StoreError as StoreError
    from natsctl.errors import StoreMissingError as StoreMissingError
    from natsctl.errors import StoreTimeoutError as StoreTimeoutError
    from natsctl.errors import SyncTimeoutError as SyncTimeoutError
    from natsctl.errors import TooLargeError as TooLargeError
    from natsctl.errors import TooManyRequestsError as TooManyRequestsError
    from natsctl.errors import UnreadError as UnreadError
    from natsctl.errors import UsageError as UsageError
    from natsctl.errors import WatchBrokenError as WatchBrokenError
    from natsctl.errors import WatchStoppingError as WatchStoppingError
    from natsctl.jetstream.options import NatsOptions as NatsOptions
    from natsctl.jetstream.store import connect as connect
    from natsctl.kubernetes.cluster import connect_kube as connect_kube
    from natsctl.kubernetes.options import KubeOptions as KubeOptions
    from natsctl.managed import *
    from natsctl.model.kinds import Kind as Kind
    from natsctl.model.kinds import KvKind as KvKind
    from natsctl.model.kinds import kv as kv
    from natsctl.model.manifests import KubeKind as KubeKind
    from natsctl.model.manifests import KubeMetadata as KubeMetadata
    from natsctl.model.manifests import KubeObject as KubeObject
    from natsctl.model.manifests import Manifest as Manifest
    from natsctl.model.manifests import Reference as Reference
    from natsctl.model.manifests import kube as kube
    from natsctl.model.objects import Metadata as Metadata
    from natsctl.model.objects import Object as Object
    from natsctl.model.plans import GarbageLimits as GarbageLimits
    from natsctl.model.plans import GarbagePlan as GarbagePlan
    from natsctl.model.plans import Orphan as Orphan
    from natsctl.model.plans import Plan as Plan
    from natsctl.model.reports import Explanation as Explanation
    from natsctl.model.reports import Status as Status
    from natsctl.model.selectors import Selector as Selector
    from natsctl.model.store import Change as Change
    from natsctl.model.store import ChangeType as ChangeType
    from natsctl.model.store import EventType as EventType
    from natsctl.model.store import JetStream as JetStream
    from natsctl.model.store import Stores as Stores
    from natsctl.resource import *
    from natsctl.watchers import *
else:
    from natsctl.public_names import load_on_first_use

    __getattr__, __dir__ = load_on_first_use(__name__, renamed={"Action": "ChangeType"})
