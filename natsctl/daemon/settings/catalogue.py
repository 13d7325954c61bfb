"""Which settings there are, and by which flag, variable and line of a file each is given."""

import json
from typing import Any

import msgspec

from natsctl.daemon.settings.settings import Settings
from natsctl.daemon.settings.values import (
    ADDRESS,
    COLLECTOR,
    DOMAIN,
    EXPIRY,
    FILE,
    FORMAT,
    LEASE,
    LOGGED,
    SECONDS,
    SWITCH,
    TEXT,
    TEXTS,
    WHOLE,
    Shape,
)

SECTIONS = tuple(field.name for field in msgspec.structs.fields(Settings))


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting.

    Attributes:
        section: of the file, and of `Settings`.
        field: what a file calls it there.
        shape: what its value looks like.
        example: a good value.
        variables: what gives it in the environment, the first that is there.
        flags: what gives it on a command line, if anything does.
        metavar: what stands for its value in help.
        help: what it is, where it has a flag.
        fills: the fields of `Settings` that it gives.
        secret: whether its value is never shown.
    """

    section: str
    field: str
    shape: Shape
    example: Any
    variables: tuple[str, ...]
    flags: tuple[str, ...] = ()
    metavar: str = ""
    help: str = ""
    fills: tuple[str, ...]
    secret: bool = False

    @property
    def name(self) -> str:
        """What people call it: `nats.creds`."""
        return f"{self.section}.{self.field}"

    @property
    def parameter(self) -> str:
        """What a command calls the value of its flag; empty where it has none."""
        return self.flags[0].lstrip("-").replace("-", "_") if self.flags else ""

    @property
    def hides(self) -> bool:
        """Whether a wrong value is kept out of an error: a secret, or what may hold one."""
        return self.secret or self.shape in (TEXTS, COLLECTOR)

    def line(self) -> str:
        """Return a good line of a file."""
        return f"{self.field} = {json.dumps(self.example, ensure_ascii=False)}"

    def typed(self) -> str:
        """Return a good value as it is typed."""
        if isinstance(self.example, list):
            return ",".join(self.example)
        return self.example if isinstance(self.example, str) else json.dumps(self.example)


def _setting(section: str, field: str, shape: Shape, example: object, **more: Any) -> Setting:
    more.setdefault("fills", (f"{section}.{field}",))
    return Setting(section=section, field=field, shape=shape, example=example, **more)


def _nats(
    field: str,
    shape: Shape,
    example: object,
    metavar: str = "",
    help: str = "",  # noqa: A002 - the field's word
    **more: Any,
) -> Setting:
    """Return a setting of NATS: without help it has no flag."""
    if help:
        more.setdefault("flags", (f"--{field.replace('_', '-')}",))
    more.setdefault("variables", (f"NATSCTL_{field.upper()}",))
    return _setting("nats", field, shape, example, metavar=metavar, help=help, **more)


def _kube(field: str, shape: Shape, example: object, **more: Any) -> Setting:
    more.setdefault("variables", (f"NATSCTL_KUBE_{field.upper()}",))
    return _setting("kube", field, shape, example, **more)


def _flagged(
    section: str, field: str, shape: Shape, example: object, flag: str, **more: Any
) -> Setting:
    """Return a setting whose variable is called as its flag."""
    variable = f"NATSCTL_{flag.removeprefix('--').replace('-', '_').upper()}"
    more |= {"flags": (flag,), "variables": (variable,)}
    return _setting(section, field, shape, example, **more)


SETTINGS = (
    _nats(
        *("servers", TEXTS, ["nats://hub:4222"], "URL", "NATS servers, comma-separated"),
        flags=("--server", "-s"),
        variables=("NATSCTL_SERVER", "NATS_URL"),
    ),
    _nats("context", TEXT, "hub", "NAME", "a context of the NATS command line"),
    _nats("creds", FILE, "hub.creds", "FILE", "a credentials file"),
    _nats("nkey", FILE, "user.nk", "FILE", "a file with a user's nkey seed"),
    _nats("user", TEXT, "ann", "NAME", "a user's name"),
    _nats("password", TEXT, "…", "TEXT", "the user's password", secret=True),
    _nats("token", TEXT, "…", "TEXT", "an authentication token", secret=True),
    _nats("tls_ca", FILE, "ca.pem", "FILE", "the certificates that vouch for the servers"),
    _nats("tls_cert", FILE, "cert.pem", "FILE", "our own certificate"),
    _nats("tls_key", FILE, "key.pem", "FILE", "our certificate's key"),
    _nats("tls_first", SWITCH, True),
    _nats("domain", TEXT, "hub", "NAME", "the JetStream domain"),
    _nats("api_prefix", TEXT, "$JS.hub.API"),
    _nats("inbox_prefix", TEXT, "_INBOX"),
    _nats("name", TEXT, "natsctl"),
    _nats(
        *("timeout_s", SECONDS, 5, "SECONDS", "how long to wait for the server"),
        flags=("--timeout",),
        variables=("NATSCTL_TIMEOUT",),
        fills=("nats.connect_timeout_s", "nats.request_timeout_s"),
    ),
    _nats("connect_timeout_s", SECONDS, 5),
    _nats("request_timeout_s", SECONDS, 5),
    _nats("silence_s", SECONDS, 3),
    _nats("marker_ttl_s", EXPIRY, 2_592_000),
    _kube(
        *("kubeconfig", FILE, "lab.yaml"),
        flags=("--kubeconfig",),
        variables=("NATSCTL_KUBECONFIG",),
        metavar="FILE",
        help="a kubeconfig, instead of kubectl's own",
    ),
    _kube(
        *("context", TEXT, "lab"),
        flags=("--kube-context",),
        metavar="NAME",
        help="a context of the kubeconfig",
    ),
    _kube("enabled", SWITCH, False, flags=("--no-kube",), help="never look for a cluster"),
    _kube("server", TEXT, "https://10.0.0.1:6443"),
    _kube("token", TEXT, "…", secret=True),
    _kube("tls_ca", FILE, "ca.pem"),
    _kube("tls_insecure", SWITCH, True),
    _kube("namespace", TEXT, "apps"),
    _kube("service_account", FILE, "/var/run/secrets/kubernetes.io/serviceaccount"),
    *(_kube(f"{name}_s", SECONDS, 5) for name in ("timeout", "connect_timeout")),
    *(_kube(f"{name}_s", SECONDS, 60) for name in ("plugin_timeout", "reread")),
    _kube("in_flight_max", WHOLE, 32),
    _kube("attempts_max", WHOLE, 6),
    _kube("answer_max_bytes", WHOLE, 256 * 1024 * 1024),
    _flagged(
        *("controllers", "workers", WHOLE, 4, "--workers"),
        metavar="N",
        help="keys that each controller syncs at once",
    ),
    _flagged(
        *("controllers", "resync_s", SECONDS, 60, "--resync"),
        metavar="SECONDS",
        help="visit every primary so often",
    ),
    _flagged(
        *("controllers", "sync_timeout_s", SECONDS, 60, "--sync-timeout"),
        metavar="SECONDS",
        help="how long a sync may take",
    ),
    _flagged(
        *("controllers", "stop_timeout_s", SECONDS, 25, "--stop-timeout"),
        metavar="SECONDS",
        help="how long syncs may go on after a stop was asked for",
    ),
    _flagged(
        *("controllers", "owner_domain", DOMAIN, "example.com", "--owner-domain"),
        metavar="DOMAIN",
        help="of the labels that link secondaries to primaries; kumori is Kumori's own",
    ),
    _flagged(
        *("controllers", "leader_elect", SWITCH, True, "--leader-elect"),
        help="work in one process at a time, the others stand by",
    ),
    _flagged(
        *("controllers", "shard", SWITCH, True, "--shard"),
        help="share the keys with other processes that run the controller",
    ),
    _flagged(
        *("controllers", "lease_ttl_s", LEASE, 15, "--lease-ttl"),
        metavar="SECONDS",
        help="how soon other processes do the work of one that has died",
    ),
    _flagged(
        *("logs", "format", FORMAT, "json", "--log-format"),
        metavar="text|json",
        help="for people or for machines",
    ),
    _flagged(
        *("logs", "level", LOGGED, "info,natsctl.jetstream=debug", "--log-level"),
        metavar="LEVEL",
        help="the least that is logged; per logger too: info,natsctl.jetstream=debug",
    ),
    _flagged(
        *("http", "listen", ADDRESS, "127.0.0.1:8080", "--listen"),
        metavar="HOST:PORT",
        help="answer /livez, /readyz and /metrics there",
    ),
    _flagged(
        *("traces", "otlp", COLLECTOR, "http://127.0.0.1:4318", "--otlp"),
        metavar="URL",
        help="send spans there (OTLP over HTTP); takes the extra natsctl[otlp]",
    ),
)
"""All of them, in the order in which they are shown; a later one wins over one that fills more."""

BY_NAME = {setting.name: setting for setting in SETTINGS}

FIELDS = tuple(
    f"{section.name}.{field.name}"
    for section in msgspec.structs.fields(Settings)
    for field in msgspec.structs.fields(section.type)
)
"""The dotted names of everything in `Settings`."""


def default_of(field: str) -> object:
    """Return what holds for a field of `Settings` where nothing is said."""
    section, _, name = field.partition(".")
    return getattr(getattr(Settings(), section), name)
