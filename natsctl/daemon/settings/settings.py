"""All settings: each with its flag, its variables, its form, its meaning and its default.

The options of the commands, the variables, the lines of a file, the help texts, `natsctl config`,
the errors and docs/settings.md come from `SETTINGS`.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from natsctl.controller.owners import KUMORI, OwnerNames
from natsctl.core.task_group import WORKERS_MAX
from natsctl.daemon.settings.address import Address
from natsctl.errors import UsageError
from natsctl.jetstream.options import DEFAULT_SERVER, NatsOptions
from natsctl.kubernetes.options import KubeOptions

LogFormat = Literal["text", "json"]


class KubeSettings(KubeOptions, frozen=True, kw_only=True):
    """The options of a connection to a cluster, and whether to look for a cluster."""

    enabled: bool = True


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of all controllers of a process. None means that each controller decides."""

    workers: int | None = None
    resync_s: float | None = None
    sync_timeout_s: float | None = None
    stop_timeout_s: float = 25.0
    owner_domain: str = "natsctl.io"
    leader_elect: bool = False
    shard: bool = False
    lease_ttl_s: float = 15.0
    state_dir: str | None = None
    record: bool = False
    recordings_max_bytes: int = 16 * 1024 * 1024

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
    """The form and the level of log lines."""

    format: LogFormat = "text"
    level: str = "info"


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The server of probes and metrics."""

    listen: str | None = None


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The collector of spans."""

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


# ---- the forms of values


class Form(msgspec.Struct, frozen=True):
    """The form of a value: it "must be *description*", *metavar* stands for it in helps."""

    description: str
    metavar: str
    type: Any
    example: Any = None

    def read(self, value: object, *, text: bool) -> object:
        """Return the value of a setting; *text* permits numbers that are written as text.

        Raises `ValueError` if the value is invalid; the message may contain the value.
        """
        if self is URLS and isinstance(value, str):
            value = (value,)
        converted = msgspec.convert(value, self.type, strict=not text)
        if self is ADDRESS:
            try:
                return str(Address.parse(converted))
            except UsageError as error:
                raise ValueError(str(error)) from error
        return converted


LEVELS = ("debug", "info", "warning", "error", "critical")
_LABEL = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_LEVEL = rf"(?i:{'|'.join(LEVELS)})"
_Text = Annotated[str, Meta(min_length=1)]
_Domain = Annotated[str, Meta(pattern=rf"\A{_LABEL}(\.{_LABEL})*\Z", max_length=253)]
_Level = Annotated[str, Meta(pattern=rf"\A{_LEVEL}(,[A-Za-z0-9_.]+={_LEVEL})*\Z")]
_Collector = Annotated[str, Meta(pattern=r"\Ahttps?://[^/?#]+[^?]*\Z")]
_Servers = Annotated[tuple[_Text, ...], Meta(min_length=1)]

TEXT = Form("a text of at least one character", "TEXT", _Text, "…")
NAME = Form("a text of at least one character", "NAME", _Text, "hub")
URLS = Form("a URL, or a list of URLs", "URL", _Servers, ["nats://hub:4222"])
FILE = Form("the path of a file", "FILE", _Text, "ca.pem")
DIRECTORY = Form("the path of a directory", "DIR", _Text, "/var/lib/natsctl")
ADDRESS = Form("HOST:PORT, or :PORT for all interfaces", "HOST:PORT", _Text, "127.0.0.1:8080")
_WITH_PATH = "http://HOST:PORT or https://HOST:PORT, with or without a path"
COLLECTOR = Form(_WITH_PATH, "URL", _Collector, "http://127.0.0.1:4318")
COUNT = Form("a whole number above 0", "N", Annotated[int, Meta(gt=0)])
_Workers = Annotated[int, Meta(gt=0, le=WORKERS_MAX)]
WORKERS = Form(f"a whole number from 1 to {WORKERS_MAX}", "N", _Workers, 4)
_Above0 = Annotated[float, Meta(gt=0, le=1e9)]
SECONDS = Form("a number of seconds above 0, at most 1e9", "SECONDS", _Above0, 60)
_From0 = Annotated[float, Meta(ge=0, le=1e9)]
SECONDS_OR_ZERO = Form("a number of seconds from 0 to 1e9", "SECONDS", _From0)
LEASE = Form("at least 1 second", "SECONDS", Annotated[float, Meta(ge=1, le=1e9)])
SWITCH = Form("true or false", "", bool)
DOMAIN = Form("a domain in lower case", "DOMAIN", _Domain)
LOG_FORMAT = Form("text or json", "text|json", LogFormat)
_LEVELS = f"a level ({', '.join(LEVELS)}), optionally followed by levels of loggers"
LEVEL = Form(_LEVELS, "LEVEL", _Level)


# ---- the settings


class Setting(msgspec.Struct, frozen=True):
    """One setting.

    Attributes:
        form: the form of its value.
        meaning: a phrase for help texts and docs.
        flag: the command-line flag, if there is one.
        shared: the variable of the `nats` command, if it has one.
        short: the short flag.
        unset: a phrase for the default if the default is not a value of this setting.
        example: a valid value; by default, the default or the form's example.
        fills: the fields of `Settings` that it sets, if it isn't the one of its name.
        secret: its value is never shown.
        common: the help of a command shows its flag; `natsctl options` shows all.
        section: the section of the file and of `Settings`.
        field: the name within the section.
    """

    form: Form
    meaning: str
    flag: str = ""
    shared: str = ""
    short: str = ""
    unset: str = "none"
    example: Any = None
    fills: tuple[str, ...] = ()
    secret: bool = False
    common: bool = False
    section: str = ""
    field: str = ""

    @property
    def name(self) -> str:
        """The dotted name."""
        return f"{self.section}.{self.field}"

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags as a user types them."""
        return tuple(filter(None, (self.flag, self.short)))

    @property
    def parameter(self) -> str:
        """The parameter of a command for the flag; empty if there is no flag."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables; the first that is set applies."""
        stem = self.parameter or self.field
        if self.section == "kube" and not self.field.startswith("kube"):
            stem = f"kube_{self.field}"
        return tuple(filter(None, (f"NATSCTL_{stem.upper()}", self.shared)))

    @property
    def hides(self) -> bool:
        """True if errors do not quote an invalid value: it is, or may contain, a secret."""
        return self.secret or self.form in (URLS, COLLECTOR)

    @property
    def default(self) -> str:
        """The default as text, for help texts and docs."""
        value = default_of(self.fills[0])
        return self.unset if value in (None, ()) else text_of_value(value)

    @property
    def valid(self) -> Any:
        """A valid value; for a switch, the one that isn't the default."""
        default = default_of(self.fills[0])
        if isinstance(default, bool):
            return not default
        value = self.example or default or self.form.example
        return int(value) if isinstance(value, float) else value

    def line(self) -> str:
        """Return a valid line of a file."""
        return f"{self.field} = {json.dumps(self.valid, ensure_ascii=False)}"

    def typed(self) -> str:
        """Return a valid value as it is typed on a command line."""
        return text_of_value(self.valid)


def default_of(field: str) -> object:
    """Return the default of a field of `Settings`."""
    section, _, name = field.partition(".")
    return getattr(getattr(Settings(), section), name)


def text_of_value(value: object) -> str:
    """Return the value of a setting as people write it."""
    match value:
        case bool():
            return str(value).lower()
        case float():
            return f"{value:.12g}"
        case tuple() | list():
            return ",".join(map(str, value))
        case _:
            return str(value)


_CONTROLLER = "unless the controller sets it"
_KUBECONFIG = "that of the kubeconfig"
_SERVER_CA = "Path of the CA certificates that verify the servers"
_CLUSTER_CA = "Path of the CA certificates that verify the kube-apiserver"
_KUBE_CONTEXT = "Name of a context of the kubeconfig"
_LOGGERS = "info,natsctl.jetstream=debug"
_BOTH = ("nats.connect_timeout_s", "nats.request_timeout_s")
_STATE = "Directory of the files that note which keys are being synced, in case the process dies"
_DOMAIN_OF_LABELS = "Domain of the owner labels of secondaries; kumori selects the labels of Kumori"
_PROBES = "Address to serve /livez, /readyz and /metrics on"
_SPANS = "URL of a collector that receives spans (OTLP over HTTP); needs the extra natsctl[otlp]"
_SERVERS = "URLs of NATS servers, separated by commas"
_CONTEXT = "Name of a context of the nats command, for options that are not set"
_API = "Subject prefix of the JetStream API"
_KUBE_FILES = "$KUBECONFIG, or ~/.kube/config"
_NAMESPACE = "Namespace of objects whose key has none"
_WORKED = "Number of keys that each controller syncs at once"
_RESYNC = "Interval at which each controller syncs every primary again"
_TAKEN_OVER = "Time after which other processes take over from a process that died"
_STATE_HOME = "$XDG_STATE_HOME/natsctl, or ~/.local/state/natsctl"

_DECLARED = {
    "nats": {
        "servers": Setting(URLS, _SERVERS, "--server", "NATS_URL", "-s", DEFAULT_SERVER),
        "context": Setting(NAME, _CONTEXT, "--context", "NATS_CONTEXT"),
        "creds": Setting(
            FILE, "Path of a credentials file", "--creds", "NATS_CREDS", example="hub.creds"
        ),
        "nkey": Setting(
            FILE, "Path of a file with a user's nkey seed", "--nkey", "NATS_NKEY", example="user.nk"
        ),
        "user": Setting(NAME, "User name", "--user", "NATS_USER", example="ann"),
        "password": Setting(
            TEXT, "Password of the user", "--password", "NATS_PASSWORD", secret=True
        ),
        "token": Setting(TEXT, "Authentication token", "--token", "NATS_TOKEN", secret=True),
        "tls_ca": Setting(FILE, _SERVER_CA, "--tls-ca", "NATS_CA", unset="the system's CAs"),
        "tls_cert": Setting(
            FILE, "Path of the client certificate", "--tls-cert", "NATS_CERT", example="cert.pem"
        ),
        "tls_key": Setting(
            FILE, "Path of the client certificate's key", "--tls-key", "NATS_KEY", example="key.pem"
        ),
        "tls_first": Setting(SWITCH, "Start TLS before the server sends its first message"),
        "domain": Setting(NAME, "JetStream domain", "--domain"),
        "api_prefix": Setting(
            TEXT, _API, unset="$JS.API, or that of the domain", example="$JS.hub.API"
        ),
        "inbox_prefix": Setting(TEXT, "Subject prefix for responses to requests"),
        "name": Setting(TEXT, "Name of the connection in the server's monitoring"),
        "timeout_s": Setting(
            SECONDS, "Timeout for connecting and for each request", "--timeout", fills=_BOTH
        ),
        "connect_timeout_s": Setting(SECONDS, "Timeout for connecting"),
        "request_timeout_s": Setting(SECONDS, "Timeout for each request"),
        "silence_s": Setting(
            SECONDS, "Time without data from the server after which the connection counts as lost"
        ),
        "marker_ttl_s": Setting(
            SECONDS_OR_ZERO, "Time after which the server removes delete markers; 0 keeps them"
        ),
    },
    "kube": {
        "kubeconfig": Setting(
            FILE, "Path of a kubeconfig", "--kubeconfig", unset=_KUBE_FILES, example="lab.yaml"
        ),
        "context": Setting(
            NAME, _KUBE_CONTEXT, "--kube-context", unset="the current context", example="lab"
        ),
        "enabled": Setting(
            SWITCH, "Whether to look for a cluster; --no-kube sets false", "--no-kube"
        ),
        "server": Setting(
            TEXT, "URL of the kube-apiserver", unset=_KUBECONFIG, example="https://10.0.0.1:6443"
        ),
        "token": Setting(
            TEXT, "Bearer token", unset="the credentials of the kubeconfig", secret=True
        ),
        "tls_ca": Setting(FILE, _CLUSTER_CA, unset=_KUBECONFIG),
        "tls_insecure": Setting(
            SWITCH, "Do not verify the certificate of the kube-apiserver; only for experiments"
        ),
        "namespace": Setting(
            TEXT, _NAMESPACE, unset="that of the context, or default", example="apps"
        ),
        "service_account": Setting(FILE, "Directory with the pod's token, CA and namespace"),
        "timeout_s": Setting(SECONDS, "Timeout for a call with all its retries"),
        "connect_timeout_s": Setting(SECONDS, "Timeout for connecting"),
        "plugin_timeout_s": Setting(
            SECONDS, "Timeout for a credential plugin, including an interactive login"
        ),
        "reread_s": Setting(SECONDS, "Time after which credentials in files are read again"),
        "in_flight_max": Setting(COUNT, "Maximum number of concurrent calls"),
        "attempts_max": Setting(COUNT, "Maximum number of attempts of a call"),
        "answer_max_bytes": Setting(COUNT, "Maximum size of a response"),
    },
    "controllers": {
        "workers": Setting(WORKERS, _WORKED, "--workers", unset=f"4, {_CONTROLLER}", common=True),
        "resync_s": Setting(SECONDS, _RESYNC, "--resync", unset=f"600, {_CONTROLLER}"),
        "sync_timeout_s": Setting(
            SECONDS, "Timeout for each sync", "--sync-timeout", unset=f"60, {_CONTROLLER}"
        ),
        "stop_timeout_s": Setting(
            SECONDS, "Time that running syncs have to finish after a stop signal", "--stop-timeout"
        ),
        "owner_domain": Setting(DOMAIN, _DOMAIN_OF_LABELS, "--owner-domain", example="example.com"),
        "leader_elect": Setting(
            SWITCH,
            "Run each controller in one process; others stand by",
            "--leader-elect",
            common=True,
        ),
        "shard": Setting(
            SWITCH, "Share each controller's keys among all processes", "--shard", common=True
        ),
        "lease_ttl_s": Setting(LEASE, _TAKEN_OVER, "--lease-ttl"),
        "state_dir": Setting(DIRECTORY, _STATE, "--state-dir", unset=_STATE_HOME),
        "record": Setting(
            SWITCH, "Record the last syncs of every key, and not only failed syncs", "--record"
        ),
        "recordings_max_bytes": Setting(
            COUNT, "Maximum memory of the recordings of syncs; the oldest are dropped"
        ),
    },
    "logs": {
        "format": Setting(
            LOG_FORMAT, "Format of log lines", "--log-format", example="json", common=True
        ),
        "level": Setting(
            LEVEL,
            "Minimum level, also per logger",
            "--log-level",
            example=_LOGGERS,
            common=True,
        ),
    },
    "http": {"listen": Setting(ADDRESS, _PROBES, "--listen", common=True)},
    "traces": {"otlp": Setting(COLLECTOR, _SPANS, "--otlp")},
}

SECTIONS = tuple(_DECLARED)
SETTINGS = tuple(
    msgspec.structs.replace(
        setting, section=section, field=field, fills=setting.fills or (f"{section}.{field}",)
    )
    for section, settings in _DECLARED.items()
    for field, setting in settings.items()
)
"""All settings in the order of the docs; a later one overrides an earlier one that fills more."""

BY_NAME = {setting.name: setting for setting in SETTINGS}

FIELDS = tuple(setting.name for setting in SETTINGS if setting.fills == (setting.name,))
"""The dotted names of all fields of `Settings`."""
