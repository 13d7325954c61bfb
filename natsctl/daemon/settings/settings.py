"""What a person may set for a process, and what holds where nothing is said."""

from typing import Literal

import msgspec

from natsctl.controller.slots.owners import KUMORI, OwnerNames
from natsctl.errors import UsageError
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.kubernetes.access.options import KubeOptions

LogFormat = Literal["text", "json"]


class KubeSettings(KubeOptions, frozen=True, kw_only=True):
    """How to reach a cluster, and whether to look for one at all.

    Attributes:
        enabled: whether a cluster is looked for where a controller has kinds of one.
    """

    enabled: bool = True


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How controllers are run.

    Attributes:
        workers: how many keys each controller syncs at once; None leaves it to the controller.
        resync_s: each primary is visited again once per so many seconds; None likewise.
        sync_timeout_s: a sync that takes longer fails; None likewise.
        stop_timeout_s: how long syncs under way may go on after a stop was asked for.
        owner_domain: the domain of the labels that link secondaries to primaries; `kumori` is
            exactly those of Kumori's controllerruntime.
        leader_elect: whether each controller works in one process at a time, of those that run it
            and have this set; the others stand by.
        shard: whether each controller's keys are shared by the processes that run it and have this
            set; not with leader_elect.
        lease_ttl_s: within how many seconds after a process has died another one does its work.
    """

    workers: int | None = None
    resync_s: float | None = None
    sync_timeout_s: float | None = None
    stop_timeout_s: float = 25.0
    owner_domain: str = "natsctl.io"
    leader_elect: bool = False
    shard: bool = False
    lease_ttl_s: float = 15.0

    @property
    def owner_names(self) -> OwnerNames:
        """The labels that the domain stands for."""
        return KUMORI if self.owner_domain == "kumori" else OwnerNames.of_domain(self.owner_domain)


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is logged, and how.

    Attributes:
        format: for people, or for machines.
        level: the least that is logged, `info`; per logger too, `info,natsctl.jetstream=debug`.
    """

    format: LogFormat = "text"
    level: str = "info"


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where health and metrics can be asked for.

    Attributes:
        listen: `HOST:PORT`, or `:PORT` for every interface; None: nowhere.
    """

    listen: str | None = None


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where spans are sent.

    Attributes:
        otlp: the URL of whoever collects them, over OTLP/HTTP; None: nowhere.
    """

    otlp: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that may be set, by section; every default is here. Its repr shows no secret."""

    nats: NatsOptions = NatsOptions()
    kube: KubeSettings = KubeSettings()
    controllers: ControllerSettings = ControllerSettings()
    logs: LogSettings = LogSettings()
    http: HttpSettings = HttpSettings()
    traces: TraceSettings = TraceSettings()

    @property
    def cluster(self) -> KubeOptions | None:
        """How to reach a cluster; None: none is to be looked for."""
        return self.kube if self.kube.enabled else None

    def check(self) -> None:
        """Raise `UsageError` where two settings contradict each other, or one lacks another."""
        self.nats.check()
        if self.controllers.leader_elect and self.controllers.shard:
            raise UsageError(
                "leader_elect and shard contradict each other: either one process leads, "
                "or all share the keys"
            )
        if self.cluster is not None:
            self.cluster.check()
