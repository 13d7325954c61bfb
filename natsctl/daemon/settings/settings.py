"""The settings of a process: each with its flag, variables, form, meaning and default.

The options of the commands, the variables, the lines of a file, the help texts, `natsctl config`,
the errors and docs/settings.md come from `SETTINGS`.
"""

import json
import os
import re
import socket
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from natsctl.controller.owners import KUMORI, OwnerNames
from natsctl.core.task_group import WORKERS_MAX
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions, load_context, selected_context
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
        if self.state_dir is not None:
            return Path(self.state_dir)
        state = os.environ.get("XDG_STATE_HOME")
        return (Path(state) if state else Path.home() / ".local" / "state") / "natsctl"

    @property
    def owner_names(self) -> OwnerNames:
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

TABLE = """\
[nats]
servers URLS --server -s NATS_URL (nats://127.0.0.1:4222)
    | URLs of NATS servers, separated by commas
context NAME --context NATS_CONTEXT
    | Name of a context of the nats command, for options that are not set
creds FILE --creds NATS_CREDS = hub.creds | Path of a credentials file
nkey FILE --nkey NATS_NKEY = user.nk | Path of a file with a user's nkey seed
user NAME --user NATS_USER = ann | User name
password SECRET --password NATS_PASSWORD | Password of the user
token SECRET --token NATS_TOKEN | Authentication token
tls_ca FILE --tls-ca NATS_CA (the system's CAs)
    | Path of the CA certificates that verify the servers
tls_cert FILE --tls-cert NATS_CERT = cert.pem | Path of the client certificate
tls_key FILE --tls-key NATS_KEY = key.pem | Path of the client certificate's key
tls_first SWITCH | Start TLS before the server sends its first message
domain NAME --domain | JetStream domain
api_prefix TEXT = $JS.hub.API ($JS.API, or that of the domain) | Subject prefix of the JetStream API
inbox_prefix TEXT | Subject prefix for responses to requests
name TEXT | Name of the connection in the server's monitoring
timeout_s SECONDS --timeout | Timeout for connecting and for each request
connect_timeout_s SECONDS | Timeout for connecting
request_timeout_s SECONDS | Timeout for each request
silence_s SECONDS | Time without data from the server after which the connection counts as lost
marker_ttl_s SECONDS_OR_ZERO | Time after which the server removes delete markers; 0 keeps them
[kube]
kubeconfig FILE --kubeconfig = lab.yaml ($KUBECONFIG, or ~/.kube/config) | Path of a kubeconfig
context NAME --kube-context = lab (the current context) | Name of a context of the kubeconfig
enabled SWITCH --no-kube | Whether to look for a cluster; --no-kube sets false
server TEXT = https://10.0.0.1:6443 (that of the kubeconfig) | URL of the kube-apiserver
token SECRET (the credentials of the kubeconfig) | Bearer token
tls_ca FILE (that of the kubeconfig) | Path of the CA certificates that verify the kube-apiserver
tls_insecure SWITCH | Do not verify the certificate of the kube-apiserver; only for experiments
namespace TEXT = apps (that of the context, or default) | Namespace of objects whose key has none
service_account FILE | Directory with the pod's token, CA and namespace
timeout_s SECONDS | Timeout for a call with all its retries
connect_timeout_s SECONDS | Timeout for connecting
plugin_timeout_s SECONDS | Timeout for a credential plugin, including an interactive login
reread_s SECONDS | Time after which credentials in files are read again
in_flight_max COUNT | Maximum number of concurrent calls
attempts_max COUNT | Maximum number of attempts of a call
answer_max_bytes COUNT | Maximum size of a response
[controllers]
workers WORKERS! --workers (4, unless the controller sets it)
    | Number of keys that each controller syncs at once
resync_s SECONDS --resync (600, unless the controller sets it)
    | Interval at which each controller syncs every primary again
sync_timeout_s SECONDS --sync-timeout (60, unless the controller sets it) | Timeout for each sync
stop_timeout_s SECONDS --stop-timeout | Time that running syncs have to finish after a stop signal
owner_domain DOMAIN --owner-domain = example.com
    | Domain of the owner labels of secondaries; kumori selects the labels of Kumori
leader_elect SWITCH! --leader-elect | Run each controller in one process; others stand by
shard SWITCH! --shard | Share each controller's keys among all processes
lease_ttl_s LEASE --lease-ttl | Time after which other processes take over from a process that died
state_dir DIRECTORY --state-dir ($XDG_STATE_HOME/natsctl, or ~/.local/state/natsctl)
    | Directory of the files that note which keys are being synced, in case the process dies
record SWITCH --record | Record the last syncs of every key, and not only failed syncs
recordings_max_bytes COUNT | Maximum memory of the recordings of syncs; the oldest are dropped
[logs]
format LOG_FORMAT! --log-format = json | Format of log lines
level LEVEL! --log-level = info,natsctl.jetstream=debug | Minimum level, also per logger
[http]
listen ADDRESS! --listen | Address to serve /livez, /readyz and /metrics on
[traces]
otlp COLLECTOR --otlp
    | URL of a collector that receives spans (OTLP over HTTP); needs the extra natsctl[otlp]
"""
"""Of each setting: its field, its form, its flags and the variable of the `nats` command, a valid
value, the default if that isn't a value of the setting, and a phrase for help texts and docs.

Help shows the flag if the form has an exclamation mark; `natsctl options` shows all.
"""

_ROW = re.compile(
    r"(\w+) ([A-Z_0]+)(!?)((?: -\S+| NATS_\w+)*)(?: = (\S+))?(?: \((.+)\))?\s+\| (.+)"
)


class Form(msgspec.Struct, frozen=True):
    """The form of a value: it "must be *description*", *metavar* stands for it in helps."""

    description: str
    metavar: str
    type: Any
    example: Any = None


_Text = Annotated[str, Meta(min_length=1)]
_Servers = Annotated[tuple[_Text, ...], Meta(min_length=1)]


def _number(kind: type, **limits: Any) -> Any:
    return Annotated[kind, Meta(**limits)]


def _like(pattern: str, length_max: int | None = None) -> Any:
    return Annotated[str, Meta(pattern=rf"\A{pattern}\Z", max_length=length_max)]


LEVELS = ("debug", "info", "warning", "error", "critical")
_LABEL, _LEVEL = "[a-z0-9]([a-z0-9-]*[a-z0-9])?", rf"(?i:{'|'.join(LEVELS)})"
_LOGGERS = rf"{_LEVEL}(,[A-Za-z0-9_.]+={_LEVEL})*"
_LEVELS = f"a level ({', '.join(LEVELS)}), optionally followed by levels of loggers"
_ANY = "a text of at least one character"
_BELOW_1E9 = "a number of seconds above 0, at most 1e9"
_UP_TO_1E9 = "a number of seconds from 0 to 1e9"
_WORKERS = f"a whole number from 1 to {WORKERS_MAX}"
_COLLECTOR = "http://HOST:PORT or https://HOST:PORT, with or without a path"
FILE = Form("the path of a file", "FILE", _Text, "ca.pem")
ADDRESS = Form("HOST:PORT, or :PORT for all interfaces", "HOST:PORT", _Text, "127.0.0.1:8080")
SWITCH = Form("true or false", "", bool)
SECRET = Form(_ANY, "TEXT", _Text, "…")
_URL = Form(_COLLECTOR, "URL", _like(r"https?://[^/?#]+[^?]*"), "http://127.0.0.1:4318")
_URLS = Form("a URL, or a list of URLs", "URL", _Servers, ["nats://hub:4222"])
_FORMS = {
    "TEXT": Form(_ANY, "TEXT", _Text, "…"),
    "SECRET": SECRET,
    "NAME": Form(_ANY, "NAME", _Text, "hub"),
    "URLS": _URLS,
    "FILE": FILE,
    "DIRECTORY": Form("the path of a directory", "DIR", _Text, "/var/lib/natsctl"),
    "ADDRESS": ADDRESS,
    "COLLECTOR": _URL,
    "COUNT": Form("a whole number above 0", "N", _number(int, gt=0)),
    "WORKERS": Form(_WORKERS, "N", _number(int, gt=0, le=WORKERS_MAX), 4),
    "SECONDS": Form(_BELOW_1E9, "SECONDS", _number(float, gt=0, le=1e9), 60),
    "SECONDS_OR_ZERO": Form(_UP_TO_1E9, "SECONDS", _number(float, ge=0, le=1e9), 2592000),
    "LEASE": Form("at least 1 second", "SECONDS", _number(float, ge=1, le=1e9)),
    "SWITCH": SWITCH,
    "DOMAIN": Form("a domain in lower case", "DOMAIN", _like(rf"{_LABEL}(\.{_LABEL})*", 253)),
    "LOG_FORMAT": Form("text or json", "text|json", LogFormat),
    "LEVEL": Form(_LEVELS, "LEVEL", _like(_LOGGERS)),
}


class Setting(msgspec.Struct, frozen=True):
    """One setting, the *field* of a *section*, as `TABLE` declares it.

    It sets the fields of `Settings` that it *fills*. *default* is a text for people. Of the flags,
    the long one is first; of the variables, the first that is set applies.
    """

    section: str
    field: str
    form: Form
    common: bool
    flags: tuple[str, ...]
    parameter: str
    variables: tuple[str, ...]
    fills: tuple[str, ...]
    default: str
    valid: Any
    meaning: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.field}"

    @property
    def secret(self) -> bool:
        return self.form is SECRET

    def line(self) -> str:
        return f"{self.field} = {json.dumps(self.valid, ensure_ascii=False)}"

    def typed(self) -> str:
        return text_of_value(self.valid)


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


def _setting(section: str, row: Sequence[str]) -> Setting:
    field, form_name, common, words, example, unset, meaning = row
    form, names = _FORMS[form_name], words.split()
    flags = tuple(name for name in names if name[0] == "-")
    parameter = flags[0].lstrip("-").replace("-", "_") if flags else ""
    stem = parameter or field
    if section == "kube" and not field.startswith("kube"):
        stem = f"kube_{field}"
    fills: tuple[str, ...] = (f"{section}.{field}",)
    if fills == ("nats.timeout_s",):
        fills = ("nats.connect_timeout_s", "nats.request_timeout_s")
    default = _DEFAULTS.value(fills[0])
    valid = not default if isinstance(default, bool) else example or default or form.example
    return Setting(
        section=section,
        field=field,
        form=form,
        common=bool(common),
        flags=flags,
        parameter=parameter,
        variables=(f"NATSCTL_{stem.upper()}", *(name for name in names if name[0] != "-")),
        fills=fills,
        default=unset or "none" if default in (None, ()) else text_of_value(default),
        valid=int(valid) if isinstance(valid, float) else valid,
        meaning=meaning,
    )


_DEFAULTS = Settings()
_BY_SECTION = {
    section: {row[0]: _setting(section, row) for row in _ROW.findall(rows)}
    for section, rows in re.findall(r"^\[(\w+)\]((?:\n[^\[].*)+)", TABLE, re.MULTILINE)
}
SETTINGS = tuple(setting for known in _BY_SECTION.values() for setting in known.values())
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

_SERVICE_VARIABLE = (
    r"NATSCTL_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_LOGIN = ("nats.creds", "nats.nkey", "nats.user", "nats.password", "nats.token")
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
    **dict.fromkeys(_LOGIN, _LOGIN),
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
        sections: dict[str, dict[str, Any]] = {section: {} for section in _BY_SECTION}
        for name, (value, _) in chosen.items():
            section, _, field = name.partition(".")
            sections[section][field] = value
        made = {name: type(getattr(_DEFAULTS, name))(**given) for name, given in sections.items()}
        return cls(Settings(**made), {name: chosen[name][1] for name in chosen}, file)

    def source(self, field: str) -> str:
        return self.sources.get(field, "default")

    def value(self, field: str) -> Any:
        return self.settings.value(field)

    def with_context(self) -> "Effective":
        """Return these settings with unset options taken from their NATS context.

        If any credential is set, no credential of the context is used. Raises `UsageError` if the
        context cannot be read, as `load_context` does.
        """
        name = self.settings.nats.context
        if name is None:
            return self
        options, given = load_context(name), self._given()
        excluded = () if given.keys().isdisjoint(_LOGIN) else _LOGIN
        context = {
            field: (value, f"context {name}")
            for field in _OF_CONTEXT
            if field not in excluded
            if (value := getattr(options, field.removeprefix("nats."))) != _DEFAULTS.value(field)
        }
        chosen = {"nats.context": given.pop("nats.context")}
        return Effective.of([given, context, chosen], self.file)

    def without_selection(self) -> "Effective":
        given = {name: one for name, one in self._given().items() if one[1] != SELECTED}
        return Effective.of([given], self.file)

    def _given(self) -> Layer:
        return {field: (self.value(field), source) for field, source in self.sources.items()}

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
        if value := flags.get(setting.parameter):
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
    layers = [typed, own, shared, {} if file is None else _from_file(file)]
    if selected := selected_context():
        given = {name for layer in layers for name in layer}
        is_needed = "nats.servers" not in given or given.isdisjoint(_LOGIN)
        if is_needed or _is_readable(selected):
            layers.append({"nats.context": (selected, SELECTED)})
    return Effective.of(layers, file)


def _is_readable(context: str) -> bool:
    try:
        load_context(context)
    except UsageError:
        return False
    return True


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
        if section not in _BY_SECTION:
            nearest = did_you_mean(section, _BY_SECTION)
            raise UsageError(f"{file}: there is no section [{section}]{nearest}")
        known = _BY_SECTION[section]
        for field in fields:
            if field not in known:
                near = did_you_mean(field, known, prefix=f"{section}.")
                hint = near or _in_section(field)
                raise UsageError(f"{file}: there is no setting {section}.{field}{hint}")
        for field, setting in known.items():
            if field not in fields:
                continue
            value = fields[field]
            layer |= _read(setting, value, str(file), setting.line(), typed=False)
            if setting.form is FILE:
                paths = (Path(path).expanduser() for path in value.split(os.pathsep))
                relative = os.pathsep.join(str(file.parent / path) for path in paths)
                layer[setting.name] = (relative, str(file))
    return layer


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
        advice = 'write lines such as name = "value"'
        raise UsageError(f"{file} is not valid TOML: {error}; {advice}") from None
    except (ValueError, RecursionError):
        reason = "a number is too long, or a list is nested too deeply"
        raise UsageError(f"cannot read a value in {file}: {reason}") from None


def _in_section(field: str) -> str:
    """Return the sections that have the field, or all sections if none has it."""
    found = [f"{field} in [{section}]" for section in _BY_SECTION if field in _BY_SECTION[section]]
    if found:
        return f"; did you mean {' or '.join(found)}?"
    return f": the sections are {', '.join(f'[{section}]' for section in _BY_SECTION)}"


def _read(
    setting: Setting, value: object, source: str, example: str, *, typed: bool = True
) -> Layer:
    """Return the fields that a value sets; a *typed* number is text."""
    form = setting.form
    try:
        given = (value,) if form is _URLS and isinstance(value, str) else value
        valid = msgspec.convert(given, form.type, strict=not typed)
        if form is ADDRESS:
            valid = str(Address.parse(valid))
    except (ValueError, UsageError):
        scalar = isinstance(value, str | int | float | bool)
        quoted = repr(value) if scalar else f"a {type(value).__name__}"
        if setting.secret or form in (_URLS, _URL):  # a URL may have a password
            quoted = "the value"
        raise UsageError(
            f"{setting.name} in {source}: {quoted} must be {form.description}; write {example}"
        ) from None
    return dict.fromkeys(setting.fills, (valid, source))
