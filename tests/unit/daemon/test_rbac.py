"""Permissions follow from slots: all that they need, and nothing else."""

from collections.abc import Iterable
from typing import Any

import pytest

from natsctl import (
    Controller,
    InformerController,
    Kind,
    Object,
    OpinionatedWatcher,
    SimpleWatcher,
    UsageError,
    kube,
    kv,
    primary,
    secondary,
    tertiary,
)
from natsctl.daemon.rbac import Role, Rule, ServiceAccount, manifests, needs, roles
from natsctl.daemon.resource_names import names_of

ALL = ("get", "list", "watch", "create", "patch", "delete")
READ = ("get", "list", "watch")
TELL = Rule(("events.k8s.io",), ("events",), ("create", "patch"))


class App(Object, frozen=True):
    pass


def controller(
    *, made: Iterable[Kind[Any]] = (), read: Iterable[Kind[Any]] = ()
) -> type[Controller]:
    """Return a controller that makes objects of some kinds, and reads those of others."""
    slots: dict[str, object] = {"apps": primary(kv(App, bucket="apps"))}
    slots |= {f"made{at}": secondary(kind) for at, kind in enumerate(made)}  # type: ignore[call-overload]
    slots |= {f"read{at}": tertiary(kind) for at, kind in enumerate(read)}
    return type("Apps", (Controller,), slots)


async def roles_of(*controllers: type[Controller]) -> list[Role]:
    needed = needs([made() for made in controllers])
    return list(roles(needed, await names_of((need.kind for need in needed), None)))


async def test_what_is_made_is_applied_deleted_and_told_of_and_what_is_read_is_only_read() -> None:
    made, read = kube("v1", "ConfigMap"), kube("v1", "Node")
    assert await roles_of(controller(made=[made], read=[read])) == [
        Role(
            None,
            (
                Rule(("",), ("configmaps",), ALL),
                Rule(("",), ("nodes",), READ),
                TELL,
            ),
        )
    ]


async def test_what_is_only_read_needs_no_events() -> None:
    assert await roles_of(controller(read=[kube("v1", "Secret", namespace="a")])) == [
        Role("a", (Rule(("",), ("secrets",), READ),))
    ]


async def test_a_slot_with_a_namespace_needs_a_role_there_only() -> None:
    found = await roles_of(
        controller(
            made=[kube("v1", "Service", namespace="b"), kube("apps/v1", "Deployment")],
            read=[kube("v1", "ConfigMap", namespace="a")],
        )
    )
    assert found == [
        Role(None, (Rule(("apps",), ("deployments",), ALL), TELL)),
        Role("a", (Rule(("",), ("configmaps",), READ),)),
        Role("b", (Rule(("",), ("services",), ALL),)),
    ]


async def test_what_is_allowed_everywhere_is_not_allowed_once_more_in_a_namespace() -> None:
    found = await roles_of(
        controller(made=[kube("v1", "Service", namespace="a")]),
        controller(read=[kube("v1", "Service")]),
    )
    assert found == [
        Role(None, (Rule(("",), ("services",), READ),)),
        Role("a", (Rule(("",), ("services",), ("create", "patch", "delete")), TELL)),
    ]
    everything = controller(made=[kube("v1", "Service")])
    assert [role.namespace for role in await roles_of(everything, everything)] == [None]


async def test_resources_with_the_same_verbs_share_a_rule_in_order() -> None:
    kinds = [kube("v1", kind) for kind in ("Service", "ConfigMap", "Secret")]
    (role,) = await roles_of(controller(made=kinds[1:], read=kinds[:1]))
    assert role.rules == (
        Rule(("",), ("configmaps", "secrets"), ALL),
        Rule(("",), ("services",), READ),
        TELL,
    )
    (merged,) = await roles_of(controller(made=kinds[1:], read=kinds))
    assert merged == role


async def test_a_slot_with_a_name_needs_no_more_than_the_object_of_that_name() -> None:
    named = kube("v1", "ConfigMap", namespace="a", name="settings")
    other = kube("v1", "Secret", namespace="a", name="password")
    assert await roles_of(controller(read=[named, other])) == [
        Role(
            "a",
            (
                Rule(("",), ("configmaps",), READ, ("settings",)),
                Rule(("",), ("secrets",), READ, ("password",)),
            ),
        )
    ]
    some = controller(made=[named], read=[kube("v1", "ConfigMap", namespace="a")])
    assert (await roles_of(some))[0].rules[:2] == (
        Rule(("",), ("configmaps",), READ),
        Rule(("",), ("configmaps",), ("create", "patch", "delete"), ("settings",)),
    )
    everywhere = controller(made=[named], read=[kube("v1", "ConfigMap")])
    assert (await roles_of(everywhere))[1].rules[0] == (
        Rule(("",), ("configmaps",), ("create", "patch", "delete"), ("settings",))
    )


async def test_events_about_what_lives_in_no_namespace_are_kept_in_default() -> None:
    assert await roles_of(controller(made=[kube("v1", "Namespace")])) == [
        Role(None, (Rule(("",), ("namespaces",), ALL),)),
        Role("default", (TELL,)),
    ]


async def test_a_namespace_for_a_kind_that_lives_in_none_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="Namespace is cluster-scoped"):
        await roles_of(controller(made=[kube("v1", "Namespace", namespace="a")]))


async def test_without_kinds_of_a_cluster_no_permissions_are_needed() -> None:
    assert await roles_of(controller(made=[kv(App, bucket="others")])) == []


async def test_a_role_and_what_gives_it_to_a_service_account_belong_together() -> None:
    slots = [kube("v1", "Service"), kube("v1", "Secret", namespace="a")]
    found = await roles_of(controller(read=slots))
    everywhere, given, within, given_there = manifests(
        found, "it", ServiceAccount(name="natsctl", namespace="ops")
    )
    subjects = [{"kind": "ServiceAccount", "name": "natsctl", "namespace": "ops"}]
    assert (everywhere["kind"], everywhere["metadata"]) == ("ClusterRole", {"name": "it"})
    assert everywhere["rules"] == [
        {"apiGroups": [""], "resources": ["services"], "verbs": list(READ)}
    ]
    assert (given["kind"], given["metadata"]) == ("ClusterRoleBinding", {"name": "it"})
    assert given["roleRef"]["kind"] == "ClusterRole"
    assert given["subjects"] == subjects
    assert within["metadata"] == given_there["metadata"] == {"name": "it", "namespace": "a"}
    assert (within["kind"], given_there["kind"]) == ("Role", "RoleBinding")
    assert given_there["roleRef"] == {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "Role",
        "name": "it",
    }
    assert given_there["subjects"] == subjects
    assert manifests(found, "it", None) == [everywhere, within]


async def test_a_kind_that_not_every_cluster_has_is_guessed_where_none_may_be_asked() -> None:
    kind = kube("example.com/v1", "Gateway")
    names = await names_of([kind, kube("v1", "Pod")], None)
    assert names["v1", "Pod"].guess == ""
    assert names["example.com/v1", "Gateway"].guess == "no cluster was asked"
    (role,) = await roles_of(controller(made=[kind]))
    assert role.rules[0] == TELL
    assert role.rules[1] == Rule(("example.com",), ("gateways",), ALL)


async def test_what_watchers_watch_is_read_and_what_they_hold_is_updated() -> None:
    watched, held = kube("v1", "ConfigMap"), kube("v1", "Node")

    class Watching(InformerController):
        def __init__(self) -> None:
            super().__init__()
            for kind in (watched, held):
                self.add_informer(kind)
            self.add_watcher(SimpleWatcher(), watched)
            self.add_watcher(OpinionatedWatcher(held), held)

    needed = needs([Watching()])
    (role,) = roles(needed, await names_of((need.kind for need in needed), None))
    assert [(rule.resources, rule.verbs) for rule in role.rules] == [
        (("configmaps",), ("get", "list", "watch")),
        (("nodes",), ("get", "list", "watch", "update")),
    ]


async def test_what_a_sync_may_read_beside_its_slots_is_read() -> None:
    class Reading(Controller):
        apps = primary(kv(App, bucket="apps"))
        kinds = (kube("v1", "Secret", namespace="shop"),)

    (role,) = await roles_of(Reading)
    assert role.namespace == "shop"
    assert [(rule.resources, rule.verbs) for rule in role.rules] == [
        (("secrets",), ("get", "list", "watch"))
    ]
