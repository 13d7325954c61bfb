"""Computes the Kubernetes permissions that controllers need, from their slots and kinds.

Secondaries are applied and deleted, never replaced, and their status isn't written. Other objects
are only read, except for those that a watcher or a managed controller holds by a finalizer. Events
about a secondary are created in its namespace.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.daemon.kinds import kinds_of
from natsctl.daemon.operator import Runnable
from natsctl.errors import ConnectError, StoreError, StoreMissingError, UsageError
from natsctl.kubernetes.names import ResourceName, guessed, well_known
from natsctl.kubernetes.options import KubeOptions
from natsctl.model import documents
from natsctl.model.manifests import KubeKind, Manifest

TIMEOUT_S = 5.0  # of a cluster that doesn't answer

Names = dict[tuple[str, str], ResourceName]  # by API version and kind


async def names_of(kinds: Iterable[KubeKind[Any]], options: KubeOptions | None) -> Names:
    """Return the plural name and the scope of each kind.

    The names of built-in kinds are known. The cluster is asked for the others, unless *options* is
    None. A name is guessed if the cluster doesn't have the kind or doesn't answer. Raises
    `UsageError` if *options* name a cluster that doesn't exist.
    """
    unique = {(kind.api_version, kind.kind) for kind in kinds}
    names = {kind: name for kind in unique if (name := well_known(*kind)) is not None}
    others, reason = unique - names.keys(), "no cluster was asked"
    if others and options is not None:
        from natsctl.kubernetes.cluster import connect_kube  # noqa: PLC0415 - the import takes a third of a second

        try:
            brief = msgspec.structs.replace(options, timeout_s=TIMEOUT_S)
            async with connect_kube(brief) as kube:
                for api_version, kind in others:
                    try:
                        found = await kube.discovery.find(api_version, kind)
                    except StoreError as error:
                        lacks = isinstance(error, StoreMissingError)
                        why = "the cluster does not have it" if lacks else str(error)
                        names[api_version, kind] = guessed(api_version, kind, why)
                    else:
                        group = api_version.rpartition("/")[0]
                        name = ResourceName(group, found.plural, found.namespaced)
                        names[api_version, kind] = name
                return names
        except ConnectError as error:
            reason = str(error)
        except UsageError:
            if options.kubeconfig or options.context:
                raise
            reason = "there is no cluster to ask"
    return names | {kind: guessed(*kind, reason) for kind in others}


VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")  # in the order of a rule
READ = frozenset(("get", "list", "watch"))
WRITE = READ | {"create", "patch", "delete"}
HOLD = READ | {"update"}
RECORD = frozenset(("create", "patch"))

CLUSTER_NAMESPACE = "default"  # of events about objects without a namespace
GROUP = "rbac.authorization.k8s.io"


class GroupResource(msgspec.Struct, frozen=True, order=True):
    """The objects of a kind, or the one object of a kind with that name."""

    group: str
    plural: str
    name: str = ""


EVENTS = GroupResource("events.k8s.io", "events")
IDENTITY_NAMESPACE = "kube-system"
IDENTITY = GroupResource("", "namespaces", IDENTITY_NAMESPACE)  # its uid is the cluster's identity

Granted = dict[GroupResource, set[str]]  # the verbs by resource


class Need(msgspec.Struct, frozen=True):
    """The verbs that a controller needs for one kind."""

    kind: KubeKind[Any]
    verbs: frozenset[str]


class Rule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A rule of a role; without `resource_names` it holds for all objects of the resources."""

    api_groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    resource_names: tuple[str, ...] = ()


class Role(msgspec.Struct, frozen=True):
    """The rules of a namespace; of the whole cluster if `namespace` is None."""

    namespace: str | None
    rules: tuple[Rule, ...]


class ServiceAccount(msgspec.Struct, frozen=True):
    """The account that roles are bound to."""

    name: str
    namespace: str


def needs(controllers: Iterable[Controller | Runnable]) -> tuple[Need, ...]:
    """Return the needs of the controllers, one for each use of a kind in Kubernetes."""
    found: list[Need] = []
    for used in (used for controller in controllers for used in kinds_of(controller)):
        if isinstance(used.kind, KubeKind):
            verbs = WRITE if used.role == "secondary" else HOLD if used.written else READ
            found.append(Need(used.kind, verbs))
            if used.recreated and used.kind.object_name is not None:
                # the check uses another name
                found.append(Need(used.kind.unnamed(), frozenset(("create",))))
    return tuple(found)


def roles(needed: Iterable[Need], names: Names, *, identity: bool = False) -> tuple[Role, ...]:
    """Return the smallest roles that meet the needs: the cluster's role, then one per namespace.

    *identity* adds the permission to read the cluster's identity, see `Kube.identity`.

    Raises `UsageError` if a slot has a namespace and its kind is cluster-scoped.
    """
    grants: defaultdict[str | None, Granted] = defaultdict(lambda: defaultdict(set))
    for need in needed:
        name = names[need.kind.api_version, need.kind.kind]
        namespace, cluster_scoped = need.kind.namespace, name.namespaced is False
        if namespace is not None and cluster_scoped:
            raise UsageError(
                f"{need.kind.name} is cluster-scoped: declare it without namespace {namespace!r}"
            )
        resource = GroupResource(name.group, name.plural, need.kind.object_name or "")
        grants[namespace][resource] |= need.verbs
        if need.verbs == WRITE:
            grants[CLUSTER_NAMESPACE if cluster_scoped else namespace][EVENTS] |= RECORD
    if identity and grants:
        grants[None if None in grants else IDENTITY_NAMESPACE][IDENTITY].add("get")
    everywhere = _needed(grants.pop(None, {}), {})
    needed_in = {name: _needed(grants[name], everywhere) for name in sorted(map(str, grants))}
    all_roles = [Role(None, _rules(everywhere))]
    all_roles += [Role(name, _rules(granted)) for name, granted in needed_in.items()]
    return tuple(role for role in all_roles if role.rules)


def manifests(roles: Sequence[Role], name: str, account: ServiceAccount | None) -> list[Manifest]:
    """Return the manifests of the roles, each followed by its binding if there is an account."""
    made: list[Manifest] = []
    for role in roles:
        scope = "Cluster" if role.namespace is None else ""
        of = {} if role.namespace is None else {"namespace": role.namespace}
        role_kind, metadata = f"{scope}Role", {"name": name, **of}
        head = {"apiVersion": f"{GROUP}/v1", "kind": role_kind, "metadata": metadata}
        made.append({**head, "rules": documents.plain(role.rules)})
        if account is not None:
            subject = {"kind": "ServiceAccount", **documents.plain(account)}
            role_ref = {"apiGroup": GROUP, "kind": role_kind, "name": name}
            bound = {"roleRef": role_ref, "subjects": [subject]}
            made.append({**head, "kind": f"{scope}RoleBinding", **bound})
    return made


def _needed(granted: Granted, everywhere: Granted) -> Granted:
    missing: Granted = {}
    for resource, verbs in granted.items():
        unnamed = GroupResource(resource.group, resource.plural)
        implied = everywhere.get(resource, set()) | everywhere.get(unnamed, set())
        if resource != unnamed:
            implied |= granted.get(unnamed, set())
        if verbs - implied:
            missing[resource] = verbs - implied
    return missing


def _rules(granted: Granted) -> tuple[Rule, ...]:
    merged: defaultdict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for resource, verbs in sorted(granted.items()):
        ordered = tuple(verb for verb in VERBS if verb in verbs)
        merged[resource.group, resource.name, ordered].append(resource.plural)
    rules = (
        Rule((group,), tuple(plurals), verbs, (name,) if name else ())
        for (group, name, verbs), plurals in merged.items()
    )
    return tuple(sorted(rules, key=lambda rule: (rule.api_groups, rule.resources)))
