"""Reads the cluster and the user that a kubeconfig's context names.

Files are merged as kubectl merges them: the first file that has a name wins. Error texts never
quote a file, because it may contain secrets.
"""

import base64
import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import yaml
from msgspec.structs import replace

from natsctl.errors import UsageError
from natsctl.kubernetes.options import KubeOptions


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


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


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: ClusterEntry = ClusterEntry()


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: User | None = None


class _Context(msgspec.Struct, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context = _Context()


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


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
        target = _select([_read(path) for path in paths], source, options.context)
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
        file = msgspec.convert({} if content is None else content, type=_File)
    except OSError as error:
        raise UsageError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError):
        # the cause quotes the file
        raise UsageError(f"kubeconfig {path} is not valid YAML") from None
    except msgspec.ValidationError as error:
        raise UsageError(f"kubeconfig {path} is invalid: {error}") from None
    return _with_absolute_paths(file, path.absolute().parent)


def _with_absolute_paths(file: _File, folder: Path) -> _File:
    def absolute(path: str | None) -> str | None:
        return str(folder / path) if path else None

    clusters = []
    for named_cluster in file.clusters or ():
        cluster = named_cluster.cluster
        authority = absolute(cluster.certificate_authority)
        cluster = replace(cluster, certificate_authority=authority)
        clusters.append(_NamedCluster(named_cluster.name, cluster))
    users = []
    for named_user in file.users or ():
        user = named_user.user or User()
        plugin = user.exec
        if plugin is not None and os.sep in plugin.command:
            plugin = replace(plugin, command=str(folder / plugin.command))
        user = replace(
            user,
            token_file=absolute(user.token_file),
            client_certificate=absolute(user.client_certificate),
            client_key=absolute(user.client_key),
            exec=plugin,
        )
        users.append(_NamedUser(named_user.name, user))
    return replace(file, clusters=clusters, users=users)


def _select(files: list[_File], source: str, context_name: str | None) -> ClusterTarget:
    current = (file.current_context for file in files if file.current_context)
    name = context_name or next(current, None)
    contexts = [context for file in files for context in file.contexts or ()]
    if name is None:
        if not contexts:
            return ClusterTarget(source=source, context=None, cluster=ClusterEntry(), user=User())
        raise UsageError(f"{source} has no current context: choose one of {_similar(contexts, '')}")
    context = _find(contexts, name)
    if context is None:
        names = _similar(contexts, name)
        raise UsageError(f"{source} has no context {name!r}; known are {names}")
    cluster_name, user_name = context.context.cluster, context.context.user
    cluster = _find([entry for file in files for entry in file.clusters or ()], cluster_name)
    user = _find([entry for file in files for entry in file.users or ()], user_name)
    if cluster is None:
        raise UsageError(f"{source}: context {name!r} names the unknown cluster {cluster_name!r}")
    if user is None and user_name:
        raise UsageError(f"{source}: context {name!r} names the unknown user {user_name!r}")
    return ClusterTarget(
        source=source,
        context=name,
        cluster=cluster.cluster,
        user=(user and user.user) or User(),
        namespace=context.context.namespace or None,
    )


def _find(entries: Iterable[N], name: str) -> N | None:
    return next((entry for entry in entries if entry.name == name), None)


def _similar(contexts: Iterable[_NamedContext], name: str) -> str:
    """Return the names of the contexts, the most similar to *name* first."""

    def dissimilarity(candidate: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, name, candidate).ratio(), candidate

    return ", ".join(sorted({context.name for context in contexts}, key=dissimilarity)) or "none"
