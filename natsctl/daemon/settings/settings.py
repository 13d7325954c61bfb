"""The settings of a process, with their defaults."""

import os
from pathlib import Path
from typing import Literal

import msgspec

from natsctl.controller.owners import KUMORI, OwnerNames
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions
from natsctl.kubernetes.options import KubeOptions

LogFormat = Literal["text", "json"]


class KubeSettings(KubeOptions, frozen=True, kw_only=True):
    """The options of a connection to a cluster, and whether to look for a cluster.

    Attributes:
        enabled: look for a cluster if a controller has kinds in a cluster.
    """

    enabled: bool = True


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all controllers of a process. None means that each controller decides.

    Attributes:
        workers: the number of keys that each controller syncs concurrently.
        resync_s: the interval in seconds at which every primary is synced again.
        sync_timeout_s: the seconds after which a sync fails.
        stop_timeout_s: the seconds that running syncs have to finish after a stop signal.
        owner_domain: the domain of the labels that link secondaries to primaries; `kumori` selects
            the labels of Kumori's controllerruntime.
        leader_elect: each controller runs in one process at a time, and other processes with this
            setting stand by.
        shard: all processes with this setting share each controller's keys. It excludes
            leader_elect.
        lease_ttl_s: the seconds after which other processes take over from a process that died.
        record: record the last syncs of every key, and not only failed ones.
        recordings_max_bytes: the memory that the recordings of a process may take.
        state_dir: the directory of files that survive the process; None for one of the user's.
    """

    workers: int | None = None
    resync_s: float | None = None
    sync_timeout_s: float | None = None
    stop_timeout_s: float = 25.0
    owner_domain: str = "natsctl.io"
    leader_elect: bool = False
    shard: bool = False
    lease_ttl_s: float = 15.0
    record: bool = False
    recordings_max_bytes: int = 16 * 1024 * 1024
    state_dir: str | None = None

    @property
    def state_directory(self) -> Path:
        """The directory of files that survive the process."""
        if self.state_dir is not None:
            return Path(self.state_dir)
        state = os.environ.get("XDG_STATE_HOME")
        return (Path(state) if state else Path.home() / ".local" / "state") / "natsctl"

    @property
    def owner_names(self) -> OwnerNames:
        """The names of the owner labels in this domain."""
        return KUMORI if self.owner_domain == "kumori" else OwnerNames.of_domain(self.owner_domain)


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The form and the level of log lines.

    Attributes:
        format: text for people, or JSON for programs.
        level: the minimum level, `info`; also per logger: `info,natsctl.jetstream=debug`.
    """

    format: LogFormat = "text"
    level: str = "info"


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server of probes and metrics.

    Attributes:
        listen: `HOST:PORT`, or `:PORT` for all interfaces; None for no server.
    """

    listen: str | None = None


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The collector of spans.

    Attributes:
        otlp: the URL of a collector (OTLP over HTTP); None to send no spans.
    """

    otlp: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings by section, with their defaults. The repr shows no secret."""

    nats: NatsOptions = NatsOptions()
    kube: KubeSettings = KubeSettings()
    controllers: ControllerSettings = ControllerSettings()
    logs: LogSettings = LogSettings()
    http: HttpSettings = HttpSettings()
    traces: TraceSettings = TraceSettings()

    @property
    def cluster(self) -> KubeOptions | None:
        """The options of the cluster; None if the process must not look for a cluster."""
        return self.kube if self.kube.enabled else None

    def check(self) -> None:
        """Raise `UsageError` if settings contradict each other, or one needs another."""
        self.nats.check()
        if self.controllers.leader_elect and self.controllers.shard:
            raise UsageError(
                "leader_elect and shard exclude each other: either one process runs a controller, "
                "or all share its keys"
            )
        if self.cluster is not None:
            self.cluster.check()
