"""Which permissions controllers need in a cluster: no more than their slots and kinds say.

What is made is applied, never replaced; statuses are never written. Everything else is only read,
but for what watchers hold by a finalizer. Events are told about what is made, in its namespace.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from natsctl.controller.controller import Controller
from natsctl.controller.slots.declare import slots
from natsctl.controller.slots.kube_secondary import KubeSecondary
from natsctl.daemon.operator import Guest, Runnable
from natsctl.daemon.resource_names import Names
from natsctl.errors import UsageError
from natsctl.kubernetes.resources.names import ResourceName
from natsctl.managed import ManagedController
from natsctl.model import documents
from natsctl.model.kinds import Kind
from natsctl.model.manifests import KubeKind, Manifest
from natsctl.watchers import InformerController

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")  # as they are listed
READ = frozenset(("get", "list", "watch"))
WRITE = READ | {"create", "patch", "delete"}
HOLD = READ | {"update"}
TELL = frozenset(("create", "patch"))

CLUSTER_NAMESPACE = "default"  # of events about what has no namespace
GROUP = "rbac.authorization.k8s.io"


class GroupResource(msgspec.Struct, frozen=True, order=True):
    """What something may be done with: objects of a kind, or the one that is named."""

    group: str
    plural: str
    name: str = ""


EVENTS = GroupResource("events.k8s.io", "events")

Granted = dict[GroupResource, set[str]]  # verbs


class Need(msgspec.Struct, frozen=True):
    """What is needed for one kind."""

    kind: KubeKind[Any]
    verbs: frozenset[str]


class Rule(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What may be done with which resources; with those of a name only, where it has names."""

    api_groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    resource_names: tuple[str, ...] = ()


class Role(msgspec.Struct, frozen=True):
    """What may be done in one namespace; in all and beyond them, where it is None."""

    namespace: str | None
    rules: tuple[Rule, ...]


class ServiceAccount(msgspec.Struct, frozen=True):
    """Whom roles are given to."""

    name: str
    namespace: str


def needs(controllers: Iterable[Controller | Runnable]) -> tuple[Need, ...]:
    """Return what the controllers need, where their kinds are of a cluster."""
    found = ((kind, verbs) for controller in controllers for kind, verbs in _uses(controller))
    return tuple(Need(kind, verbs) for kind, verbs in found if isinstance(kind, KubeKind))


def _uses(controller: Controller | Runnable) -> Iterator[tuple[Kind[Any], frozenset[str]]]:
    """Return what the controller works with, and what it does there."""
    if isinstance(controller, Controller):
        for slot in slots(type(controller)):
            yield slot.kind, WRITE if slot.role is KubeSecondary else READ
    if isinstance(controller, Controller | Guest):
        for kind in controller.kinds:
            yield kind, READ
    if isinstance(controller, InformerController | ManagedController):
        for kind in controller.held_kinds:
            yield kind, HOLD


def roles(needed: Iterable[Need], names: Names) -> tuple[Role, ...]:
    """Return the least roles that fulfil the needs: one per namespace, that for all first.

    Raises `UsageError` for a slot that names a namespace although its kind lives in none.
    """
    grants: defaultdict[str | None, Granted] = defaultdict(lambda: defaultdict(set))
    for need in needed:
        name = names[need.kind.api_version, need.kind.kind]
        _check(need.kind, name)
        of = GroupResource(name.group, name.plural, need.kind.object_name or "")
        grants[need.kind.namespace][of] |= need.verbs
        if need.verbs == WRITE:
            grants[_events_of(need.kind, name)][EVENTS] |= TELL
    everywhere = _needed(grants.pop(None, {}), {})
    within = {place: _needed(grants[place], everywhere) for place in sorted(map(str, grants))}
    found = [Role(None, _rules(everywhere))]
    found += [Role(place, _rules(granted)) for place, granted in within.items()]
    return tuple(role for role in found if role.rules)


def manifests(found: Sequence[Role], name: str, account: ServiceAccount | None) -> list[Manifest]:
    """Return the roles as manifests, each followed by what gives it to the account, if any."""
    return [manifest for role in found for manifest in _manifests(role, name, account)]


def _check(kind: KubeKind[Any], name: ResourceName) -> None:
    if kind.namespace is not None and name.namespaced is False:
        raise UsageError(
            f"{kind.name} is cluster-scoped: declare it without namespace {kind.namespace!r}"
        )


def _events_of(kind: KubeKind[Any], name: ResourceName) -> str | None:
    return CLUSTER_NAMESPACE if name.namespaced is False else kind.namespace


def _needed(granted: Granted, everywhere: Granted) -> Granted:
    """Return what is not granted already: in every namespace, or whatever the name is."""
    left: Granted = {}
    for of, verbs in granted.items():
        unnamed = GroupResource(of.group, of.plural)
        known = everywhere.get(of, set()) | everywhere.get(unnamed, set())
        if of != unnamed:
            known |= granted.get(unnamed, set())
        if verbs - known:
            left[of] = verbs - known
    return left


def _rules(granted: Granted) -> tuple[Rule, ...]:
    """Return one rule for all resources of a group with which the same may be done."""
    merged: defaultdict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for of, verbs in sorted(granted.items()):
        merged[of.group, of.name, tuple(verb for verb in VERBS if verb in verbs)].append(of.plural)
    found = (
        Rule((group,), tuple(plurals), verbs, (name,) if name else ())
        for (group, name, verbs), plurals in merged.items()
    )
    return tuple(sorted(found, key=lambda rule: (rule.api_groups, rule.resources)))


def _manifests(role: Role, name: str, account: ServiceAccount | None) -> Iterator[Manifest]:
    scope = "Cluster" if role.namespace is None else ""
    metadata = {"name": name, **({} if role.namespace is None else {"namespace": role.namespace})}
    head = {"apiVersion": f"{GROUP}/v1", "kind": f"{scope}Role", "metadata": metadata}
    yield {**head, "rules": documents.plain(role.rules)}
    if account is not None:
        subject = {"kind": "ServiceAccount", **documents.plain(account)}
        given = {"apiGroup": GROUP, "kind": head["kind"], "name": name}
        yield {**head, "kind": f"{scope}RoleBinding", "roleRef": given, "subjects": [subject]}
