"""All settings, each with its default and its meaning.

The flags, the variables, the lines of a file, the help texts, `natsctl config`, the errors and
docs/settings.md come from this catalogue.
"""

import json
from typing import Any

import msgspec

from natsctl.daemon.settings.settings import Settings
from natsctl.daemon.settings.values import (
    ADDRESS,
    COLLECTOR,
    COUNT,
    COUNT_OR_AUTO,
    DOMAIN,
    FILE,
    LEASE,
    LOG_FORMAT,
    LOG_LEVEL,
    NAME,
    SECONDS,
    SECONDS_OR_ZERO,
    SWITCH,
    TEXT,
    URLS,
    Shape,
)
from natsctl.jetstream.connection.options import DEFAULT_SERVER

SECTIONS = tuple(field.name for field in msgspec.structs.fields(Settings))

FIELDS = tuple(
    f"{section.name}.{field.name}"
    for section in msgspec.structs.fields(Settings)
    for field in msgspec.structs.fields(section.type)
)
"""The dotted names of all fields of `Settings`."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        name: the dotted name: the section, and the name in that section of a file.
        shape: the form of its value.
        example: a valid value.
        meaning: a phrase for help texts and docs.
        variables: the environment variables; the first that is set applies.
        flags: the command-line flags, if there are any.
        unset: a phrase for the default if the default is not a value of this setting.
        fills: the fields of `Settings` that it sets.
        secret: True if its value is never shown.
    """

    name: str
    shape: Shape
    example: Any
    meaning: str
    variables: tuple[str, ...]
    flags: tuple[str, ...]
    unset: str
    fills: tuple[str, ...]
    secret: bool

    @property
    def section(self) -> str:
        """The section of the file and of `Settings`."""
        return self.name.partition(".")[0]

    @property
    def field(self) -> str:
        """The name within the section."""
        return self.name.partition(".")[2]

    @property
    def parameter(self) -> str:
        """The parameter of a command for the flag; empty if there is no flag."""
        return self.flags[0].lstrip("-").replace("-", "_") if self.flags else ""

    @property
    def hides(self) -> bool:
        """True if errors do not quote an invalid value: it is, or may contain, a secret."""
        return self.secret or self.shape in (URLS, COLLECTOR)

    @property
    def default(self) -> str:
        """The default as text, for help texts and docs."""
        value = default_of(self.fills[0])
        return self.unset if value in (None, ()) else text_of_value(value)

    def line(self) -> str:
        """Return a valid line of a file."""
        return f"{self.field} = {json.dumps(self.example, ensure_ascii=False)}"

    def typed(self) -> str:
        """Return a valid value as it is typed on a command line."""
        if isinstance(self.example, list):
            return ",".join(self.example)
        return self.example if isinstance(self.example, str) else json.dumps(self.example)


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


def _setting(
    name: str,
    shape: Shape,
    example: object,
    meaning: str,
    *flags: str,
    variables: tuple[str, ...] = (),
    unset: str = "none",
    fills: tuple[str, ...] = (),
    secret: bool = False,
) -> Setting:
    """Return a setting; its variable is named after the flag, or after the field.

    The variable of a field without a flag begins with `NATSCTL_KUBE_` in the section `kube`.
    """
    section, _, field = name.partition(".")
    stem = flags[0].lstrip("-") if flags else f"kube_{field}" if section == "kube" else field
    return Setting(
        name=name,
        shape=shape,
        example=example,
        meaning=meaning,
        variables=variables or (f"NATSCTL_{stem.replace('-', '_').upper()}",),
        flags=flags,
        unset=unset,
        fills=fills or (name,),
        secret=secret,
    )


_OF_CONTROLLER = "unless the controller sets it"
_OF_KUBECONFIG = "that of the kubeconfig"

SETTINGS = (
    _setting(
        "nats.servers",
        URLS,
        ["nats://hub:4222"],
        "URLs of NATS servers, separated by commas",
        *("--server", "-s"),
        variables=("NATSCTL_SERVER", "NATS_URL"),
        unset=DEFAULT_SERVER,
    ),
    _setting(
        "nats.context",
        NAME,
        "hub",
        "Name of a context of the nats command, which provides options that are not set",
        "--context",
    ),
    _setting("nats.creds", FILE, "hub.creds", "Path of a credentials file", "--creds"),
    _setting("nats.nkey", FILE, "user.nk", "Path of a file with a user's nkey seed", "--nkey"),
    _setting("nats.user", NAME, "ann", "User name", "--user"),
    _setting("nats.password", TEXT, "…", "Password of the user", "--password", secret=True),
    _setting("nats.token", TEXT, "…", "Authentication token", "--token", secret=True),
    _setting(
        "nats.tls_ca",
        FILE,
        "ca.pem",
        "Path of the CA certificates that verify the servers",
        "--tls-ca",
        unset="the system's CAs",
    ),
    _setting("nats.tls_cert", FILE, "cert.pem", "Path of the client certificate", "--tls-cert"),
    _setting("nats.tls_key", FILE, "key.pem", "Path of the client certificate's key", "--tls-key"),
    _setting("nats.tls_first", SWITCH, True, "Start TLS before the server sends its first message"),
    _setting("nats.domain", NAME, "hub", "JetStream domain", "--domain"),
    _setting(
        "nats.api_prefix",
        TEXT,
        "$JS.hub.API",
        "Subject prefix of the JetStream API",
        unset="$JS.API, or that of the domain",
    ),
    _setting("nats.inbox_prefix", TEXT, "_INBOX", "Subject prefix for responses to requests"),
    _setting("nats.name", TEXT, "natsctl", "Name of the connection in the server's monitoring"),
    _setting(
        "nats.timeout_s",
        SECONDS,
        5,
        "Timeout for connecting and for each request",
        "--timeout",
        fills=("nats.connect_timeout_s", "nats.request_timeout_s"),
    ),
    _setting("nats.connect_timeout_s", SECONDS, 5, "Timeout for connecting"),
    _setting("nats.request_timeout_s", SECONDS, 5, "Timeout for each request"),
    _setting(
        "nats.silence_s",
        SECONDS,
        3,
        "Time without data from the server after which the connection counts as lost",
    ),
    _setting(
        "nats.marker_ttl_s",
        SECONDS_OR_ZERO,
        2_592_000,
        "Time after which the server removes delete markers; 0 keeps them",
    ),
    _setting(
        "kube.kubeconfig",
        FILE,
        "lab.yaml",
        "Path of a kubeconfig",
        "--kubeconfig",
        unset="$KUBECONFIG, or ~/.kube/config",
    ),
    _setting(
        "kube.context",
        NAME,
        "lab",
        "Name of a context of the kubeconfig",
        "--kube-context",
        unset="the current context",
    ),
    _setting(
        "kube.enabled",
        SWITCH,
        False,
        "Look for a cluster; --no-kube turns this off",
        "--no-kube",
        variables=("NATSCTL_KUBE_ENABLED",),
    ),
    _setting(
        "kube.server",
        TEXT,
        "https://10.0.0.1:6443",
        "URL of the kube-apiserver",
        unset=_OF_KUBECONFIG,
    ),
    _setting(
        "kube.token",
        TEXT,
        "…",
        "Bearer token",
        unset="the credentials of the kubeconfig",
        secret=True,
    ),
    _setting(
        "kube.tls_ca",
        FILE,
        "ca.pem",
        "Path of the CA certificates that verify the kube-apiserver",
        unset=_OF_KUBECONFIG,
    ),
    _setting(
        "kube.tls_insecure",
        SWITCH,
        True,
        "Do not verify the certificate of the kube-apiserver; only for experiments",
    ),
    _setting(
        "kube.namespace",
        TEXT,
        "apps",
        "Namespace of objects whose key has none",
        unset="that of the context, or default",
    ),
    _setting(
        "kube.service_account",
        FILE,
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "Directory with the pod's token, CA and namespace",
    ),
    _setting("kube.timeout_s", SECONDS, 5, "Timeout for a call with all its retries"),
    _setting("kube.connect_timeout_s", SECONDS, 5, "Timeout for connecting"),
    _setting(
        "kube.plugin_timeout_s",
        SECONDS,
        60,
        "Timeout for a credential plugin, including an interactive login",
    ),
    _setting("kube.reread_s", SECONDS, 60, "Time after which credentials in files are read again"),
    _setting("kube.in_flight_max", COUNT, 32, "Maximum number of concurrent calls"),
    _setting("kube.attempts_max", COUNT, 6, "Maximum number of attempts of a call"),
    _setting("kube.answer_max_bytes", COUNT, 256 * 1024 * 1024, "Maximum size of a response"),
    _setting(
        "controllers.workers",
        COUNT,
        4,
        "Number of keys that each controller syncs concurrently",
        "--workers",
        unset=f"4, {_OF_CONTROLLER}",
    ),
    _setting(
        "controllers.resync_s",
        SECONDS,
        60,
        "Interval at which each controller syncs every primary again",
        "--resync",
        unset=f"600, {_OF_CONTROLLER}",
    ),
    _setting(
        "controllers.sync_timeout_s",
        SECONDS,
        60,
        "Timeout for each sync",
        "--sync-timeout",
        unset=f"60, {_OF_CONTROLLER}",
    ),
    _setting(
        "controllers.stop_timeout_s",
        SECONDS,
        25,
        "Time that running syncs have to finish after a stop signal",
        "--stop-timeout",
    ),
    _setting(
        "controllers.owner_domain",
        DOMAIN,
        "example.com",
        "Domain of the owner labels of secondaries; kumori selects the labels of Kumori",
        "--owner-domain",
    ),
    _setting(
        "controllers.leader_elect",
        SWITCH,
        True,
        "Run each controller in one process at a time; other processes stand by",
        "--leader-elect",
    ),
    _setting(
        "controllers.shard",
        SWITCH,
        True,
        "Share each controller's keys among all processes that run it",
        "--shard",
    ),
    _setting(
        "controllers.processes",
        COUNT_OR_AUTO,
        4,
        "Number of processes that share each controller's keys; auto starts one per usable core",
        "--processes",
    ),
    _setting(
        "controllers.lease_ttl_s",
        LEASE,
        15,
        "Time after which other processes take over from a process that died",
        "--lease-ttl",
    ),
    _setting(
        "controllers.state_dir",
        FILE,
        "/var/lib/natsctl",
        "Directory of the files that note which keys are held, in case the process dies",
        "--state-dir",
        unset="$XDG_STATE_HOME/natsctl, or ~/.local/state/natsctl",
    ),
    _setting(
        "controllers.record",
        SWITCH,
        True,
        "Record the last syncs of every key, and not only failed syncs",
        "--record",
    ),
    _setting(
        "controllers.recordings_max_bytes",
        COUNT,
        16 * 1024 * 1024,
        "Maximum memory of the recordings of syncs; the oldest are dropped",
    ),
    _setting("logs.format", LOG_FORMAT, "json", "Format of log lines", "--log-format"),
    _setting(
        "logs.level",
        LOG_LEVEL,
        "info,natsctl.jetstream=debug",
        "Minimum level of log lines, also per logger: info,natsctl.jetstream=debug",
        "--log-level",
    ),
    _setting(
        "http.listen",
        ADDRESS,
        "127.0.0.1:8080",
        "Address to serve /livez, /readyz and /metrics on",
        "--listen",
    ),
    _setting(
        "traces.otlp",
        COLLECTOR,
        "http://127.0.0.1:4318",
        "URL of a collector that receives spans (OTLP over HTTP); needs the extra natsctl[otlp]",
        "--otlp",
    ),
)
"""All settings in the order of the docs; a later one overrides an earlier one that fills more."""

BY_NAME = {setting.name: setting for setting in SETTINGS}
