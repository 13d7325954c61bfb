"""What controllers need of a cluster: a connection, and permissions."""

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import pytest

from natsctl import (
    Controller,
    InformerController,
    Kind,
    KubeKind,
    KubeOptions,
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
from natsctl.daemon.kinds import cluster_for
from natsctl.daemon.rbac import Role, Rule, names_of, needs, roles

# ---- the RBAC rules of a controller grant exactly the permissions that its slots need

ALL = ("get", "list", "watch", "create", "patch", "delete")
READ = ("get", "list", "watch")
EVENTS = Rule(("events.k8s.io",), ("events",), ("create", "patch"))


class App(Object, frozen=True):
    pass


def controller(
    *, made: Iterable[Kind[Any]] = (), read: Iterable[Kind[Any]] = ()
) -> type[Controller]:
    """Return a controller with secondaries of the kinds `made` and tertiaries of `read`."""
    slots: dict[str, object] = {"apps": primary(kv(App, bucket="apps"))}
    slots |= {f"made{number}": secondary(kind) for number, kind in enumerate(made)}  # type: ignore[call-overload]
    slots |= {f"read{number}": tertiary(kind) for number, kind in enumerate(read)}
    return type("Apps", (Controller,), slots)


async def roles_of(*controllers: type[Controller]) -> list[Role]:
    needed = needs([controller_type() for controller_type in controllers])
    return list(roles(needed, await names_of((need.kind for need in needed), None)))


async def test_secondaries_need_all_verbs_and_events_and_tertiaries_need_read_verbs() -> None:
    written_kind, read_kind = kube("v1", "ConfigMap"), kube("v1", "Node")
    assert await roles_of(controller(made=[written_kind], read=[read_kind])) == [
        Role(
            None,
            (
                Rule(("",), ("configmaps",), ALL),
                Rule(("",), ("nodes",), READ),
                EVENTS,
            ),
        )
    ]


@pytest.mark.parametrize("namespace", [None, "a"])
async def test_the_identity_of_the_cluster_needs_one_namespace(namespace: str | None) -> None:
    needed = needs([controller(read=[kube("v1", "Secret", namespace=namespace)])()])
    names = await names_of((need.kind for need in needed), None)
    identity = Rule(("",), ("namespaces",), ("get",), ("kube-system",))
    secrets = Rule(("",), ("secrets",), READ)
    if namespace is None:
        expected = [Role(None, (identity, secrets))]
    else:
        expected = [Role("a", (secrets,)), Role("kube-system", (identity,))]
    assert list(roles(needed, names, identity=True)) == expected
    assert list(roles((), {}, identity=True)) == []


async def test_a_slot_with_a_namespace_needs_a_role_in_that_namespace() -> None:
    roles_needed = await roles_of(
        controller(
            made=[kube("v1", "Service", namespace="b"), kube("apps/v1", "Deployment")],
            read=[kube("v1", "ConfigMap", namespace="a")],
        )
    )
    assert roles_needed == [
        Role(None, (Rule(("apps",), ("deployments",), ALL), EVENTS)),
        Role("a", (Rule(("",), ("configmaps",), READ),)),
        Role("b", (Rule(("",), ("services",), ALL),)),
    ]


async def test_a_slot_with_a_name_needs_a_rule_for_that_name() -> None:
    named = kube("v1", "ConfigMap", namespace="a", name="settings")
    password = kube("v1", "Secret", namespace="a", name="password")
    assert await roles_of(controller(read=[named, password])) == [
        Role(
            "a",
            (
                Rule(("",), ("configmaps",), READ, ("settings",)),
                Rule(("",), ("secrets",), READ, ("password",)),
            ),
        )
    ]
    namespaced = controller(made=[named], read=[kube("v1", "ConfigMap", namespace="a")])
    assert (await roles_of(namespaced))[0].rules[:2] == (
        Rule(("",), ("configmaps",), READ),
        Rule(("",), ("configmaps",), ("create", "patch", "delete"), ("settings",)),
    )
    everywhere = controller(made=[named], read=[kube("v1", "ConfigMap")])
    assert (await roles_of(everywhere))[1].rules[0] == (
        Rule(("",), ("configmaps",), ("create", "patch", "delete"), ("settings",))
    )


async def test_a_slot_that_recreates_one_object_may_create_others_for_its_check() -> None:
    class Apps(Controller):
        apps = primary(kv(App, bucket="apps"))
        board = secondary(
            kube("v1", "ConfigMap", namespace="a", name="board"), on_immutable="recreate"
        )

    assert await roles_of(Apps) == [
        Role(
            "a",
            (
                Rule(("",), ("configmaps",), ("create",)),
                Rule(
                    ("",), ("configmaps",), ("get", "list", "watch", "patch", "delete"), ("board",)
                ),
                EVENTS,
            ),
        )
    ]


async def test_a_namespace_for_a_cluster_scoped_kind_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Namespace is cluster-scoped"):
        await roles_of(controller(made=[kube("v1", "Namespace", namespace="a")]))


async def test_watched_kinds_need_read_verbs_and_opinionated_watchers_need_update() -> None:
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


# ---- a cluster is connected only if a controller has Kubernetes kinds

NOWHERE = KubeOptions(kubeconfig="/nowhere/at/all")


class Plain(Controller):
    apps = primary(kv(App, bucket="plain"))

    async def sync_handler(self, key: str) -> float | None:
        return None


class Clustered(Plain):
    apps = primary(kv(App, bucket="clustered"))
    configs = secondary(kube("v1", "ConfigMap"))


async def test_controllers_without_kubernetes_kinds_need_no_cluster() -> None:
    async with cluster_for([Plain()], NOWHERE) as cluster:
        assert cluster is None


async def test_without_a_cluster_the_error_names_the_slot_that_needs_one() -> None:
    with pytest.raises(UsageError, match=r"Clustered\.configs is kept in Kubernetes.*--no-kube"):
        async with cluster_for([Plain(), Clustered()], None):
            pass


@pytest.mark.parametrize("kinds", [[], [kube("v1", "ConfigMap")]])
async def test_an_informer_controller_needs_a_cluster_for_kubernetes_kinds(
    kinds: list[KubeKind[Any]],
) -> None:
    watching = InformerController(name="watching")
    for kind in kinds:
        watching.add_informer(kind)
    refused = pytest.raises(UsageError, match="ConfigMap, which watching reads, is kept in Kub")
    with refused if kinds else nullcontext():
        async with cluster_for([watching], None) as cluster:
            assert cluster is None
