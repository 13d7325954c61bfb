"""Which cluster and which user a kubeconfig names.

Files are merged as kubectl does: of what several say, the first counts. Texts never quote a file,
because there are secrets in it.
"""

import base64
import difflib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import yaml

from natsctl.errors import UsageError
from natsctl.kubernetes.access.options import KubeOptions


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


class Extension(msgspec.Struct, frozen=True):
    """Whatever somebody adds to a cluster."""

    name: str
    extension: object = None


class ClusterEntry(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """Where a cluster is, and how it is known. Paths are absolute."""

    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[Extension] | None = None

    def authority_data(self) -> str | None:
        """Return the certificates that vouch for it, in base64, as a kubeconfig holds them.

        Raises `UsageError` where their file cannot be read.
        """
        if self.certificate_authority_data or not self.certificate_authority:
            return self.certificate_authority_data
        return base64.b64encode(read_file(self.certificate_authority)).decode()


class Variable(msgspec.Struct, frozen=True):
    """A variable of a plugin's environment."""

    name: str
    value: str


class Exec(msgspec.Struct, frozen=True, rename="camel"):
    """A plugin that says who we are."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[Variable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: str | None = None


class User(msgspec.Struct, frozen=True, rename="kebab", omit_defaults=True):
    """Who we are, and how we prove it. Paths are absolute. Its repr shows nothing."""

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

    def __repr__(self) -> str:
        return "User(***)"

    def __rich_repr__(self) -> Iterable[str]:  # type: ignore[override]
        return ("***",)


class ClusterTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A way to a cluster: `source` says for people where it was found."""

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
    """Return what is in a file that a kubeconfig names; `UsageError` where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path}, which the kubeconfig names: {error.strerror}") from error


def find_target(options: KubeOptions) -> ClusterTarget | None:
    """Return the way that the options, KUBECONFIG or `~/.kube/config` name; None: there is none.

    Raises `UsageError` naming the file, where one that is named is missing or makes no sense; an
    unknown context lists those that exist, the nearest first.
    """
    alone = options.server and options.token and not (options.kubeconfig or options.context)
    paths = [] if alone else _paths(options)
    if not paths:
        return _over(
            ClusterTarget(source="the options", context=None, cluster=ClusterEntry(), user=User()),
            options,
        )
    source = os.pathsep.join(map(str, paths))
    return _over(_chosen([_read(path) for path in paths], source, options.context), options)


def _over(way: ClusterTarget, options: KubeOptions) -> ClusterTarget | None:
    """Return the way with what the options say instead; None where nobody names a server."""
    cluster, user = way.cluster, way.user
    if options.server:
        cluster = msgspec.structs.replace(cluster, server=options.server)
    if options.tls_ca:
        cluster = msgspec.structs.replace(
            cluster,
            certificate_authority=str(Path(options.tls_ca).expanduser()),
            certificate_authority_data=None,
            insecure_skip_tls_verify=False,
        )
    if options.tls_insecure:
        cluster = msgspec.structs.replace(cluster, insecure_skip_tls_verify=True)
    if options.token is not None:
        user = User(token=options.token)
    if not cluster.server:
        if way.context is None:
            return None
        raise UsageError(f"{way.source}: the cluster of context {way.context!r} has no server")
    return msgspec.structs.replace(way, cluster=cluster, user=user)


def _paths(options: KubeOptions) -> list[Path]:
    if options.kubeconfig:
        return [Path(path).expanduser() for path in _split(options.kubeconfig)]
    named = _split(os.environ.get("KUBECONFIG", ""))
    if named:
        found = [path for path in map(Path, named) if path.exists()]
        if not found and not options.server:
            raise UsageError(f"KUBECONFIG names no file that exists: {os.pathsep.join(named)}")
        return found
    usual = Path("~/.kube/config").expanduser()
    return [usual] if usual.exists() else []


def _split(paths: str) -> list[str]:
    return [path for path in paths.split(os.pathsep) if path]


def _read(path: Path) -> _File:
    try:
        content = yaml.safe_load(path.read_bytes())
        read = msgspec.convert({} if content is None else content, type=_File)
    except OSError as error:
        raise UsageError(f"kubeconfig {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError):
        raise UsageError(f"kubeconfig {path} is no valid YAML") from None  # it quotes the file
    except msgspec.ValidationError as error:
        raise UsageError(f"kubeconfig {path} is not as it should be: {error}") from None
    return _rooted(read, path.absolute().parent)


def _rooted(file: _File, folder: Path) -> _File:
    """Return the file with absolute paths."""

    def rooted(path: str | None) -> str | None:
        return str(folder / path) if path else None

    clusters = [
        msgspec.structs.replace(
            named,
            cluster=msgspec.structs.replace(
                named.cluster,
                certificate_authority=rooted(named.cluster.certificate_authority),
            ),
        )
        for named in file.clusters or ()
    ]
    users = []
    for named in file.users or ():
        user = named.user or User()
        plugin = user.exec
        if plugin is not None and os.sep in plugin.command:
            plugin = msgspec.structs.replace(plugin, command=str(folder / plugin.command))
        user = msgspec.structs.replace(
            user,
            token_file=rooted(user.token_file),
            client_certificate=rooted(user.client_certificate),
            client_key=rooted(user.client_key),
            exec=plugin,
        )
        users.append(_NamedUser(named.name, user))
    return msgspec.structs.replace(file, clusters=clusters, users=users)


def _chosen(files: list[_File], source: str, wanted: str | None) -> ClusterTarget:
    name = wanted or next((file.current_context for file in files if file.current_context), None)
    contexts = [context for file in files for context in file.contexts or ()]
    if name is None:
        if not contexts:
            return ClusterTarget(source=source, context=None, cluster=ClusterEntry(), user=User())
        raise UsageError(f"{source} has no current context: name one of {_known(contexts, '')}")
    context = _named(contexts, name)
    if context is None:
        raise UsageError(f"{source} has no context {name!r}; known are {_known(contexts, name)}")
    at, who = context.context.cluster, context.context.user
    cluster = _named([one for file in files for one in file.clusters or ()], at)
    user = _named([one for file in files for one in file.users or ()], who)
    if cluster is None:
        raise UsageError(f"{source}: context {name!r} names cluster {at!r}, which is not there")
    if user is None and who:
        raise UsageError(f"{source}: context {name!r} names user {who!r}, who is not there")
    return ClusterTarget(
        source=source,
        context=name,
        cluster=cluster.cluster,
        user=(user and user.user) or User(),
        namespace=context.context.namespace or None,
    )


def _named(entries: Iterable[N], name: str) -> N | None:
    return next((entry for entry in entries if entry.name == name), None)


def _known(contexts: Iterable[_NamedContext], wanted: str) -> str:
    def unlike(name: str) -> tuple[float, str]:
        return -difflib.SequenceMatcher(None, wanted, name).ratio(), name

    return ", ".join(sorted({context.name for context in contexts}, key=unlike)) or "none"
