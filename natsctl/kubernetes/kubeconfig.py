"""Reads the cluster and the user that a kubeconfig's context names.

Files are merged as kubectl merges them: the first file that has a name wins. Error texts never
quote a file, because it may contain secrets.
"""

import base64
import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec.structs import replace

from natsctl.errors import UsageError
from natsctl.kubernetes.options import KubeOptions

T = TypeVar("T")

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class Extension(msgspec.Struct, frozen=True):
    """Additional data of a cluster entry."""

    name: str
    extension: object = None


class ClusterEntry(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """The address of a cluster and its TLS settings. Paths are absolute."""

    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[Extension] | None = None

    def authority_data(self) -> str | None:
        """Return the CA certificates in base64, as a kubeconfig has them.

        Raises `UsageError` if their file can't be read.
        """
        if self.certificate_authority_data or not self.certificate_authority:
            return self.certificate_authority_data
        return base64.b64encode(read_file(self.certificate_authority)).decode()


class Variable(msgspec.Struct, frozen=True):
    """An environment variable for a plugin."""

    name: str
    value: str


class Exec(msgspec.Struct, frozen=True, rename="camel"):
    """A credential plugin. Its text has no arguments, because they may contain secrets."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[Variable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: str | None = None

    def __str__(self) -> str:
        return f"credential plugin {self.command}"


class User(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """The credentials of a user. Paths are absolute. The repr shows nothing."""

    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    username: str | None = None
    password: str | None = None
    auth_provider: dict[str, Any] | None = None
    exec: Exec | None = None
    impersonate: str | None = msgspec.field(default=None, name="as")
    impersonate_uid: str | None = msgspec.field(default=None, name="as-uid")
    impersonate_groups: list[str] | None = msgspec.field(default=None, name="as-groups")
    impersonate_extra: dict[str, list[str]] | None = msgspec.field(
        default=None, name="as-user-extra"
    )

    def __repr__(self) -> str:
        return "User(***)"

    def __rich_repr__(self) -> Iterable[str]:  # type: ignore[override]
        return ("***",)


class ClusterTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster and the user to connect with.

    `source` names the files for messages; `context` is None if there is no kubeconfig.
    """

    source: str
    context: str | None
    cluster: ClusterEntry
    user: User
    namespace: str | None = None


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _Entry(msgspec.Struct, frozen=True):
    """A named context, cluster or user. It's checked only if it's selected."""

    name: str
    context: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    user: dict[str, Any] | None = None


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_Entry] | None = None
    users: list[_Entry] | None = None
    contexts: list[_Entry] | None = None


def read_file(path: str) -> bytes:
    """Return the content of a file named in a kubeconfig; raises `UsageError`."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}, which the kubeconfig names: {error.strerror}") from error


def find_target(options: KubeOptions) -> ClusterTarget | None:
    """Return the cluster and the user that the options, KUBECONFIG or `~/.kube/config` select.

    Returns None if none of them names a server. Raises `UsageError` that names the file if a
    kubeconfig is missing or invalid. If a context is unknown, the error lists the existing
    contexts, the most similar first.
    """
    complete = options.server and options.token and not (options.kubeconfig or options.context)
    paths = [] if complete else _paths(options)
    if paths:
        source = os.pathsep.join(map(str, paths))
        target = _select(paths, source, options.context)
    else:
        target = ClusterTarget(
            source="the options", context=None, cluster=ClusterEntry(), user=User()
        )
    cluster, user = target.cluster, target.user
    if options.server:
        cluster = replace(cluster, server=options.server)
    if options.tls_ca:
        cluster = replace(
            cluster,
            certificate_authority=str(Path(options.tls_ca).expanduser()),
            certificate_authority_data=None,
            insecure_skip_tls_verify=False,
        )
    if options.tls_insecure:
        cluster = replace(cluster, insecure_skip_tls_verify=True)
    if options.token is not None:
        user = User(token=options.token)
    if not cluster.server:
        if target.context is None:
            return None
        raise UsageError(
            f"{target.source}: the cluster of context {target.context!r} has no server"
        )
    return replace(target, cluster=cluster, user=user)


def _paths(options: KubeOptions) -> list[Path]:
    if options.kubeconfig:
        return [Path(path).expanduser() for path in _split(options.kubeconfig)]
    variable = _split(os.environ.get("KUBECONFIG", ""))
    if variable:
        existing = [path for path in map(Path, variable) if path.exists()]
        if not existing and not options.server:
            raise UsageError(f"KUBECONFIG names no file that exists: {os.pathsep.join(variable)}")
        return existing
    default = Path("~/.kube/config").expanduser()
    return [default] if default.exists() else []


def _split(paths: str) -> list[str]:
    return [path for path in paths.split(os.pathsep) if path]


def _read(path: Path) -> _File:
    try:
        content = yaml.safe_load(path.read_bytes())
        return msgspec.convert({} if content is None else content, type=_File)
    except OSError as error:
        raise UsageError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError):
        # the cause quotes the file
        raise UsageError(f"kubeconfig {path} is not valid YAML") from None
    except msgspec.ValidationError as error:
        raise UsageError(f"kubeconfig {path} is invalid: {error}") from None


def _select(paths: list[Path], source: str, context_name: str | None) -> ClusterTarget:
    name, entries = context_name, dict[tuple[str, str], tuple[Path, dict[str, Any]]]()
    for path in paths:
        file, folder = _read(path), path.absolute().parent
        name = name or file.current_context
        lists = {"context": file.contexts, "cluster": file.clusters, "user": file.users}
        for kind, named in lists.items():
            for entry in named or ():  # the first one of a name
                entries.setdefault((kind, entry.name), (folder, getattr(entry, kind) or {}))
    contexts = [known for kind, known in entries if kind == "context"]
    if not (name or contexts):
        return ClusterTarget(source=source, context=None, cluster=ClusterEntry(), user=User())
    if not name:
        raise UsageError(f"{source} has no current context: choose one of {_similar(contexts, '')}")
    if name not in contexts:
        raise UsageError(f"{source} has no context {name!r}; known are {_similar(contexts, name)}")

    def selected(kind: str, entry_name: str, entry_type: type[T]) -> T:
        if (kind, entry_name) not in entries:
            raise UsageError(f"{source}: context {name!r} names the unknown {kind} {entry_name!r}")
        try:
            return msgspec.convert(_absolute(*entries[kind, entry_name]), entry_type)
        except msgspec.ValidationError as error:
            raise UsageError(f"{source}: {kind} {entry_name!r} is invalid: {error}") from None

    context = selected("context", name, _Context)
    return ClusterTarget(
        source=source,
        context=name,
        cluster=selected("cluster", context.cluster, ClusterEntry),
        user=selected("user", context.user, User) if context.user else User(),
        namespace=context.namespace or None,
    )


def _absolute(folder: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry with absolute paths; it has them relative to the *folder* of its file."""
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command")):
        entry = {**entry, "exec": {**plugin, "command": str(folder / str(plugin["command"]))}}
    return {
        name: str(folder / value) if name in _PATHS and value and isinstance(value, str) else value
        for name, value in entry.items()
    }


def _similar(contexts: Iterable[str], name: str) -> str:
    def dissimilarity(candidate: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, name, candidate).ratio(), candidate

    return ", ".join(sorted(contexts, key=dissimilarity)) or "none"
