"""The settings of a process: each with its flag, variables, form, meaning and default.

The options of the commands, the variables, the lines of a file, the help texts, `natsctl config`,
the errors and docs/settings.md come from `SETTINGS`.
"""

import json
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from natsctl.controller.owners import KUMORI, OwnerNames
from natsctl.core.task_group import WORKERS_MAX
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError
from natsctl.jetstream.options import DEFAULT_SERVER, NatsOptions, load_context, selected_context
from natsctl.kubernetes.options import KubeOptions

# ---- addresses to listen on

PORT_MAX = 65_535
_LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not bound


class Address(msgspec.Struct, frozen=True):
    """A host and a port; an empty host means all interfaces, port 0 any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Return the address in `HOST:PORT`, `[HOST]:PORT` for IPv6, or `:PORT`.

        Raises `UsageError` with examples if the text has another form.
        """
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        valid = colon and port.isascii() and port.isdigit() and int(port) <= PORT_MAX
        if not valid or (not bracketed and set(host) & set(":/@[]")):
            raise UsageError(
                f"{text!r} is not an address to listen on: write HOST:PORT, for example "
                "127.0.0.1:8080, [::1]:8080, or :8080 for all interfaces"
            )
        return cls(host[1:-1] if bracketed else host, int(port))

    @property
    def nearby(self) -> "Address":
        """The address to connect to from this machine: the loopback instead of all interfaces."""
        return Address(_LOOPBACK.get(self.host, self.host), self.port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def reason_of(error: OSError | UnicodeError) -> str:
    """Return why the process cannot listen, without the words that Python puts around it."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno).lower()
    return getattr(error, "strerror", None) or str(error)


# ---- values

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

    def value(self, name: str) -> Any:
        """Return the value of a field by its dotted name."""
        section, _, field = name.partition(".")
        return getattr(getattr(self, section), field)

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


# ---- what settings are: their forms, names and meanings


class Form(msgspec.Struct, frozen=True):
    """The form of a value: it "must be *description*", *metavar* stands for it in helps."""

    description: str
    metavar: str
    type: Any
    example: Any = None


LEVELS = ("debug", "info", "warning", "error", "critical")
_LABEL, _LEVEL = "[a-z0-9]([a-z0-9-]*[a-z0-9])?", rf"(?i:{'|'.join(LEVELS)})"
_Text = Annotated[str, Meta(min_length=1)]
_Domain = Annotated[str, Meta(pattern=rf"\A{_LABEL}(\.{_LABEL})*\Z", max_length=253)]
_Level = Annotated[str, Meta(pattern=rf"\A{_LEVEL}(,[A-Za-z0-9_.]+={_LEVEL})*\Z")]
_Collector = Annotated[str, Meta(pattern=r"\Ahttps?://[^/?#]+[^?]*\Z")]
_Servers = Annotated[tuple[_Text, ...], Meta(min_length=1)]
_Workers = Annotated[int, Meta(gt=0, le=WORKERS_MAX)]
_Above0, _From0, _From1 = (
    Annotated[float, Meta(gt=0, le=1e9)],
    Annotated[float, Meta(ge=0, le=1e9)],
    Annotated[float, Meta(ge=1, le=1e9)],
)

TEXT = Form("a text of at least one character", "TEXT", _Text, "…")
NAME = Form("a text of at least one character", "NAME", _Text, "hub")
URLS = Form("a URL, or a list of URLs", "URL", _Servers, ["nats://hub:4222"])
FILE = Form("the path of a file", "FILE", _Text, "ca.pem")
DIRECTORY = Form("the path of a directory", "DIR", _Text, "/var/lib/natsctl")
ADDRESS = Form("HOST:PORT, or :PORT for all interfaces", "HOST:PORT", _Text, "127.0.0.1:8080")
_WITH_PATH = "http://HOST:PORT or https://HOST:PORT, with or without a path"
COLLECTOR = Form(_WITH_PATH, "URL", _Collector, "http://127.0.0.1:4318")
COUNT = Form("a whole number above 0", "N", Annotated[int, Meta(gt=0)])
WORKERS = Form(f"a whole number from 1 to {WORKERS_MAX}", "N", _Workers, 4)
SECONDS = Form("a number of seconds above 0, at most 1e9", "SECONDS", _Above0, 60)
SECONDS_OR_ZERO = Form("a number of seconds from 0 to 1e9", "SECONDS", _From0)
LEASE = Form("at least 1 second", "SECONDS", _From1)
SWITCH = Form("true or false", "", bool)
DOMAIN = Form("a domain in lower case", "DOMAIN", _Domain)
LOG_FORMAT = Form("text or json", "text|json", LogFormat)
_LEVELS = f"a level ({', '.join(LEVELS)}), optionally followed by levels of loggers"
LEVEL = Form(_LEVELS, "LEVEL", _Level)


class Setting(msgspec.Struct, frozen=True):
    """One setting.

    Attributes:
        form: the form of its value.
        meaning: a phrase for help texts and docs.
        names: its flags, and the variable of the `nats` command, if it has them.
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
    names: str = ""
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
        """The flags as a user types them, the long one first."""
        return tuple(name for name in self.names.split() if name[0] == "-")

    @property
    def parameter(self) -> str:
        """The parameter of a command for the flag; empty if there is no flag."""
        return self.flags[0].lstrip("-").replace("-", "_") if self.flags else ""

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables; the first that is set applies."""
        stem = self.parameter or self.field
        if self.section == "kube" and not self.field.startswith("kube"):
            stem = f"kube_{self.field}"
        shared = (name for name in self.names.split() if name[0] != "-")
        return (f"NATSCTL_{stem.upper()}", *shared)

    @property
    def default(self) -> str:
        """The default as text, for help texts and docs."""
        value = _DEFAULTS.value(self.fills[0])
        return self.unset if value in (None, ()) else text_of_value(value)

    @property
    def valid(self) -> Any:
        """A valid value; for a switch, the one that isn't the default."""
        default = _DEFAULTS.value(self.fills[0])
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


_DEFAULTS = Settings()


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
_BOTH = ("nats.connect_timeout_s", "nats.request_timeout_s")
_STATE = "Directory of the files that note which keys are being synced, in case the process dies"
_DOMAIN_OF_LABELS = "Domain of the owner labels of secondaries; kumori selects the labels of Kumori"
_PROBES = "Address to serve /livez, /readyz and /metrics on"
_SPANS = "URL of a collector that receives spans (OTLP over HTTP); needs the extra natsctl[otlp]"
_CONTEXT = "Name of a context of the nats command, for options that are not set"
_SILENCE = "Time without data from the server after which the connection counts as lost"
_MARKERS = "Time after which the server removes delete markers; 0 keeps them"
_INSECURE = "Do not verify the certificate of the kube-apiserver; only for experiments"
_PLUGIN = "Timeout for a credential plugin, including an interactive login"
_LOGIN = "the credentials of the kubeconfig"
_WORKED = "Number of keys that each controller syncs at once"
_RESYNC = "Interval at which each controller syncs every primary again"
_STOP = "Time that running syncs have to finish after a stop signal"
_ELECT = "Run each controller in one process; others stand by"
_SHARD = "Share each controller's keys among all processes"
_TAKEN_OVER = "Time after which other processes take over from a process that died"
_RECORD = "Record the last syncs of every key, and not only failed syncs"
_MEMORY = "Maximum memory of the recordings of syncs; the oldest are dropped"

_DECLARED = {
    "nats": {
        "servers": Setting(
            URLS,
            "URLs of NATS servers, separated by commas",
            "--server -s NATS_URL",
            DEFAULT_SERVER,
        ),
        "context": Setting(NAME, _CONTEXT, "--context NATS_CONTEXT"),
        "creds": Setting(
            FILE, "Path of a credentials file", "--creds NATS_CREDS", example="hub.creds"
        ),
        "nkey": Setting(
            FILE, "Path of a file with a user's nkey seed", "--nkey NATS_NKEY", example="user.nk"
        ),
        "user": Setting(NAME, "User name", "--user NATS_USER", example="ann"),
        "password": Setting(TEXT, "Password of the user", "--password NATS_PASSWORD", secret=True),
        "token": Setting(TEXT, "Authentication token", "--token NATS_TOKEN", secret=True),
        "tls_ca": Setting(FILE, _SERVER_CA, "--tls-ca NATS_CA", "the system's CAs"),
        "tls_cert": Setting(
            FILE, "Path of the client certificate", "--tls-cert NATS_CERT", example="cert.pem"
        ),
        "tls_key": Setting(
            FILE, "Path of the client certificate's key", "--tls-key NATS_KEY", example="key.pem"
        ),
        "tls_first": Setting(SWITCH, "Start TLS before the server sends its first message"),
        "domain": Setting(NAME, "JetStream domain", "--domain"),
        "api_prefix": Setting(
            TEXT,
            "Subject prefix of the JetStream API",
            unset="$JS.API, or that of the domain",
            example="$JS.hub.API",
        ),
        "inbox_prefix": Setting(TEXT, "Subject prefix for responses to requests"),
        "name": Setting(TEXT, "Name of the connection in the server's monitoring"),
        "timeout_s": Setting(
            SECONDS, "Timeout for connecting and for each request", "--timeout", fills=_BOTH
        ),
        "connect_timeout_s": Setting(SECONDS, "Timeout for connecting"),
        "request_timeout_s": Setting(SECONDS, "Timeout for each request"),
        "silence_s": Setting(SECONDS, _SILENCE),
        "marker_ttl_s": Setting(SECONDS_OR_ZERO, _MARKERS),
    },
    "kube": {
        "kubeconfig": Setting(
            *(FILE, "Path of a kubeconfig", "--kubeconfig", "$KUBECONFIG, or ~/.kube/config"),
            example="lab.yaml",
        ),
        "context": Setting(
            *(NAME, "Name of a context of the kubeconfig", "--kube-context"),
            unset="the current context",
            example="lab",
        ),
        "enabled": Setting(
            SWITCH, "Whether to look for a cluster; --no-kube sets false", "--no-kube"
        ),
        "server": Setting(
            TEXT, "URL of the kube-apiserver", "", _KUBECONFIG, example="https://10.0.0.1:6443"
        ),
        "token": Setting(TEXT, "Bearer token", "", _LOGIN, secret=True),
        "tls_ca": Setting(FILE, _CLUSTER_CA, "", _KUBECONFIG),
        "tls_insecure": Setting(SWITCH, _INSECURE),
        "namespace": Setting(
            *(TEXT, "Namespace of objects whose key has none", ""),
            unset="that of the context, or default",
            example="apps",
        ),
        "service_account": Setting(FILE, "Directory with the pod's token, CA and namespace"),
        "timeout_s": Setting(SECONDS, "Timeout for a call with all its retries"),
        "connect_timeout_s": Setting(SECONDS, "Timeout for connecting"),
        "plugin_timeout_s": Setting(SECONDS, _PLUGIN),
        "reread_s": Setting(SECONDS, "Time after which credentials in files are read again"),
        "in_flight_max": Setting(COUNT, "Maximum number of concurrent calls"),
        "attempts_max": Setting(COUNT, "Maximum number of attempts of a call"),
        "answer_max_bytes": Setting(COUNT, "Maximum size of a response"),
    },
    "controllers": {
        "workers": Setting(WORKERS, _WORKED, "--workers", f"4, {_CONTROLLER}", common=True),
        "resync_s": Setting(SECONDS, _RESYNC, "--resync", f"600, {_CONTROLLER}"),
        "sync_timeout_s": Setting(
            SECONDS, "Timeout for each sync", "--sync-timeout", f"60, {_CONTROLLER}"
        ),
        "stop_timeout_s": Setting(SECONDS, _STOP, "--stop-timeout"),
        "owner_domain": Setting(DOMAIN, _DOMAIN_OF_LABELS, "--owner-domain", example="example.com"),
        "leader_elect": Setting(SWITCH, _ELECT, "--leader-elect", common=True),
        "shard": Setting(SWITCH, _SHARD, "--shard", common=True),
        "lease_ttl_s": Setting(LEASE, _TAKEN_OVER, "--lease-ttl"),
        "state_dir": Setting(
            *(DIRECTORY, _STATE, "--state-dir"),
            "$XDG_STATE_HOME/natsctl, or ~/.local/state/natsctl",
        ),
        "record": Setting(SWITCH, _RECORD, "--record"),
        "recordings_max_bytes": Setting(COUNT, _MEMORY),
    },
    "logs": {
        "format": Setting(
            LOG_FORMAT, "Format of log lines", "--log-format", example="json", common=True
        ),
        "level": Setting(
            *(LEVEL, "Minimum level, also per logger", "--log-level"),
            example="info,natsctl.jetstream=debug",
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


# ---- where they come from

FILE_NAME = "natsctl.toml"
VARIABLE = "NATSCTL_CONFIG"
SIZE_MAX_BYTES = 64 * 1024
SELECTED = "nats context select"
"""The source of the context that the `nats` command uses too."""

LOGIN = ("nats.creds", "nats.nkey", "nats.user", "nats.password", "nats.token")
"""The fields that are credentials."""

_SERVICE_VARIABLE = (
    r"NATSCTL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_NOT_IN_CONTEXT = ("name", "connect_timeout_s", "request_timeout_s", "silence_s", "marker_ttl_s")
_OF_CONTEXT = tuple(
    field
    for field in FIELDS
    if field.startswith("nats.") and field.removeprefix("nats.") not in _NOT_IN_CONTEXT
)
_CLUSTER = tuple(
    f"kube.{name}" for name in ("server", "token", "tls_ca", "tls_insecure", "namespace", "enabled")
)
_OVERRIDES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LOGIN, LOGIN),
    # the user may be in one source, and the password in another
    **dict.fromkeys(("nats.user", "nats.password"), ("nats.creds", "nats.nkey", "nats.token")),
    **dict.fromkeys(("nats.tls_cert", "nats.tls_key"), ("nats.tls_cert", "nats.tls_key")),
    **dict.fromkeys(("nats.domain", "nats.api_prefix"), ("nats.domain", "nats.api_prefix")),
    "nats.context": _OF_CONTEXT,
    "kube.context": _CLUSTER,
    "kube.kubeconfig": ("kube.context", *_CLUSTER),
}
"""The fields that a field overrides in all weaker sources."""

Layer = dict[str, tuple[Any, str]]
"""The values that a source sets, each with the source, by the dotted name of the field."""


class Effective(msgspec.Struct, frozen=True):
    """The settings in effect, the source of each, and the file that was read.

    A source is `--server`, `NATSCTL_SERVER` or `natsctl.toml`, by dotted name. A field without a
    source has its default.
    """

    settings: Settings
    sources: Mapping[str, str]
    file: Path | None = None

    @classmethod
    def of(cls, layers: Iterable[Layer], file: Path | None) -> "Effective":
        """Return the settings in effect, from layers in descending precedence.

        A layer with any credential overrides all credentials of weaker layers. The same holds for
        a certificate and its key, and for a domain and a prefix. A layer that names a context
        overrides everything in weaker layers that a context can set, and so does a kubeconfig.
        """
        chosen: Layer = {}
        overridden: set[str] = set()
        for layer in layers:
            added = {name: layer[name] for name in layer if name not in {*chosen, *overridden}}
            chosen |= added
            overridden.update(field for name in added for field in _OVERRIDES.get(name, ()))
        sections: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, (value, _) in chosen.items():
            section, _, field = name.partition(".")
            sections[section][field] = value
        made = {name: type(getattr(_DEFAULTS, name))(**given) for name, given in sections.items()}
        return cls(Settings(**made), {name: chosen[name][1] for name in chosen}, file)

    def source(self, field: str) -> str:
        """Return the source of the field, `default` if no source sets it."""
        return self.sources.get(field, "default")

    def value(self, field: str) -> Any:
        """Return the value of the field."""
        return self.settings.value(field)

    def _given(self) -> Layer:
        return {field: (self.value(field), source) for field, source in self.sources.items()}

    def with_context(self) -> "Effective":
        """Return these settings with unset options taken from their NATS context.

        If any credential is set, no credential of the context is used. Raises `UsageError` if the
        context cannot be read, as `load_context` does; a context that is only selected may be
        broken if the server and the credentials are set.
        """
        name, given = self.settings.nats.context, self._given()
        if name is None:
            return self
        excluded = () if given.keys().isdisjoint(LOGIN) else LOGIN
        try:
            options = load_context(name)
        except UsageError:
            if self.source("nats.context") == SELECTED and excluded and "nats.servers" in given:
                return self.without_selection()
            raise
        context = {
            field: (value, f"context {name}")
            for field in FIELDS
            if field.startswith("nats.") and field not in excluded
            if (value := getattr(options, field.removeprefix("nats."))) != _DEFAULTS.value(field)
        }
        chosen = {"nats.context": given.pop("nats.context")}
        return Effective.of([given, context, chosen], self.file)

    def without_selection(self) -> "Effective":
        """Return these settings without the context that `nats context select` selected."""
        given = {name: one for name, one in self._given().items() if one[1] != SELECTED}
        return Effective.of([given], self.file)

    @property
    def nats(self) -> NatsOptions:
        """The options of the connection to NATS, with those of the context.

        A context that cannot be read is still named, so that connecting raises the error.
        """
        try:
            complete = self.with_context()
        except UsageError:
            return self.settings.nats
        return msgspec.structs.replace(complete.settings.nats, context=None)


def load_settings(
    flags: Mapping[str, str | bool | None], environ: Mapping[str, str], *, config: str | None = None
) -> Effective:
    """Return the settings in effect.

    A flag overrides a variable of natsctl, which overrides a variable of the `nats` command, which
    overrides the file. The context that `nats context select` selected is the weakest.

    Args:
        flags: the values of flags by parameter; None and False mean that the flag is not given.
        environ: the environment; empty variables are ignored.
        config: the file to read; by default the file in `NATSCTL_CONFIG`, or else `natsctl.toml` in
            the current folder if it exists. Relative paths in a file are relative to its folder.

    Raises `UsageError` for an invalid value, with the setting, its source and a valid example; for
    an unknown variable or setting; and for a file that is named but does not exist.
    """
    _check_variables(environ)
    typed, own, shared = Layer(), Layer(), Layer()
    for setting in SETTINGS:
        value = flags.get(setting.parameter) if setting.flags else None
        if value:
            flag = setting.flags[0]
            text = str(not flag.startswith("--no-")) if value is True else value
            typed |= _read(setting, text, flag, f"{flag} {setting.typed()}")
        for layer, name in zip((own, shared), setting.variables, strict=False):
            if environ.get(name):
                layer.update(_read(setting, environ[name], name, f"{name}={setting.typed()}"))
    named = [typed[name][1] for name in ("kube.kubeconfig", "kube.context") if name in typed]
    if named and "kube.enabled" in typed:
        raise UsageError(f"{typed['kube.enabled'][1]} excludes {' and '.join(named)}")
    if "nats.user" in shared and "nats.password" not in {**typed, **own, **shared}:
        # the nats command takes a user without a password as a token
        shared.setdefault("nats.token", shared.pop("nats.user"))
    chosen = config or environ.get(VARIABLE) or (FILE_NAME if Path(FILE_NAME).is_file() else None)
    file = Path(chosen).expanduser() if chosen else None
    selected = selected_context()
    selection: Layer = {"nats.context": (selected, SELECTED)} if selected else {}
    in_file = {} if file is None else _from_file(file)
    return Effective.of([typed, own, shared, in_file, selection], file)


def _check_variables(environ: Mapping[str, str]) -> None:
    """Raise `UsageError` for a variable that begins with `NATSCTL_` and is not a setting.

    Empty variables are ignored. So are the variables that Kubernetes and Docker set in each
    container for services, if the name of a service begins with `natsctl`.
    """
    variables = [VARIABLE, *(name for setting in SETTINGS for name in setting.variables)]
    for name, value in sorted(environ.items()):
        if name.startswith("NATSCTL_") and name not in variables and value:
            link = name.endswith("_PORT") and "://" in value
            if not (link or re.fullmatch(_SERVICE_VARIABLE, name)):
                names = [known.removeprefix("NATSCTL_") for known in variables]
                nearest = did_you_mean(name.removeprefix("NATSCTL_"), names, prefix="NATSCTL_")
                raise UsageError(f"there is no variable {name}{nearest}")


def _from_file(file: Path) -> Layer:
    content, layer = _read_toml(file), Layer()
    for section, fields in content.items():
        if not isinstance(fields, dict):
            raise UsageError(f"{file}: {section} is not in a section{_in_section(section)}")
        if section not in SECTIONS:
            nearest = did_you_mean(section, SECTIONS)
            raise UsageError(f"{file}: there is no section [{section}]{nearest}")
        for field in fields:
            if field not in _DECLARED[section]:
                near = did_you_mean(field, _DECLARED[section], prefix=f"{section}.")
                hint = near or _in_section(field)
                raise UsageError(f"{file}: there is no setting {section}.{field}{hint}")
    for setting in SETTINGS:
        if setting.field in content.get(setting.section, ()):
            value = content[setting.section][setting.field]
            layer |= _read(setting, value, str(file), setting.line(), typed=False)
            if setting.form is FILE:
                paths = (Path(path).expanduser() for path in value.split(os.pathsep))
                relative = os.pathsep.join(str(file.parent / path) for path in paths)
                layer[setting.name] = (relative, str(file))
    return layer


def _in_section(field: str) -> str:
    """Return the sections that have the field, or all sections if none has it."""
    found = [f"{field} in [{section}]" for section in SECTIONS if field in _DECLARED[section]]
    if found:
        return f"; did you mean {' or '.join(found)}?"
    return f": the sections are {', '.join(f'[{section}]' for section in SECTIONS)}"


def _read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a file of at most 64 KiB; errors quote nothing of it but its line."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(SIZE_MAX_BYTES + 1)
        if len(raw) > SIZE_MAX_BYTES:
            raise UsageError(f"the settings in {file} are longer than {SIZE_MAX_BYTES} bytes")
        return tomllib.loads(raw.decode())
    except OSError as error:
        raise UsageError(f"cannot read the settings in {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not valid TOML: it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f'{file} is not valid TOML: {error}; write lines such as name = "value"'
        ) from None
    except (ValueError, RecursionError):
        raise UsageError(
            f"cannot read a value in {file}: a number is too long, or a list is nested too deeply"
        ) from None


def _read(
    setting: Setting, value: object, source: str, example: str, *, typed: bool = True
) -> Layer:
    """Return the fields that a value sets; a *typed* number is text."""
    form = setting.form
    try:
        given = (value,) if form is URLS and isinstance(value, str) else value
        valid = msgspec.convert(given, form.type, strict=not typed)
        if form is ADDRESS:
            valid = str(Address.parse(valid))
    except (ValueError, UsageError):
        scalar = isinstance(value, str | int | float | bool)
        quoted = repr(value) if scalar else f"a {type(value).__name__}"
        if setting.secret or form in (URLS, COLLECTOR):  # also the cause may quote a secret
            quoted = "the value"
        raise UsageError(
            f"{setting.name} in {source}: {quoted} must be {form.description}; write {example}"
        ) from None
    return dict.fromkeys(setting.fills, (valid, source))
