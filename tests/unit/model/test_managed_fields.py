"""Detection of applied fields that another manager has taken."""

from typing import Any

import pytest

from natsctl.model.documents import Document
from natsctl.model.managed_fields import FieldManager, lost_fields, same_family, union

OURS, THEIRS = "natsctl/apps", "kubectl-edit"
WEB = 'k:{"name":"web"}'
PORT = 'k:{"containerPort":80,"protocol":"TCP"}'


def lost(
    wanted: dict[str, Any],
    live: dict[str, Any],
    ours: dict[str, Any] | None,
    theirs: dict[str, Any] | None = None,
    *,
    metadata_only: bool = False,
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the lost fields as pairs."""
    entries = [(OURS, True, ours), (THEIRS, False, theirs)]
    managers = [FieldManager(*entry) for entry in entries if entry[2] is not None]  # type: ignore[arg-type]
    fields = lost_fields(wanted, live, managers, OURS, metadata_only=metadata_only)
    return [(field.path, field.managers) for field in fields]


def spec(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": fields}


def owned(**fields: Any) -> dict[str, Any]:
    return {"f:spec": {f"f:{name}": below for name, below in fields.items()}}


def container(**fields: Any) -> dict[str, Any]:
    return spec(containers=[{"name": "web", **fields}])


def owned_container(**fields: Any) -> dict[str, Any]:
    below = {f"f:{name}": owner for name, owner in fields.items()}
    return owned(containers={WEB: {".": {}, "f:name": {}, **below}})


@pytest.mark.parametrize(
    ("wanted", "live", "ours"),
    [
        (spec(cpu="1000m"), spec(cpu="1"), owned(cpu={})),
        (spec(clusterIP=""), spec(clusterIP="10.0.0.9"), owned(clusterIP={})),
        (spec(minReadySeconds=0), spec(), owned(minReadySeconds={})),
        (spec(nodeSelector={}, tolerations=[], note=None), spec(), owned()),
        (spec(a={"b": "1000m", "c": 1}), spec(a={"b": "1", "c": 1}), owned(a={"f:b": {}})),
        (spec(selector={"a": "1000m"}), spec(selector={"a": "1"}), owned(selector={})),
        (spec(items=["b", "a"]), spec(items=["a", "b"]), owned(items={'v:"a"': {}, 'v:"b"': {}})),
        (container(cpu="1000m"), container(cpu="1"), owned_container(cpu={})),
        (
            container(ports=[{"containerPort": 80}], cpu="1000m"),
            container(ports=[{"containerPort": 80, "protocol": "TCP"}], cpu="1"),
            owned_container(ports={PORT: {".": {}, "f:containerPort": {}}}, cpu={}),
        ),
        (
            container(cpu="1000m"),
            spec(containers=[{"name": "injected"}, {"name": "web", "cpu": "1"}]),
            owned_container(cpu={}),
        ),
    ],
)
def test_a_field_normalized_by_the_server_is_not_lost(
    wanted: dict[str, Any], live: dict[str, Any], ours: dict[str, Any]
) -> None:
    assert lost(wanted, live, ours, {"f:status": {}}) == []


@pytest.mark.parametrize(
    ("wanted", "live"),
    [(spec(replicas=1), spec(replicas=5)), (spec(replicas=0), spec(replicas=5))],
)
def test_a_number_that_differs_is_lost_whoever_owns_it(
    wanted: dict[str, Any], live: dict[str, Any]
) -> None:
    assert lost(wanted, live, owned(replicas={})) == [(".spec.replicas", ())]


def test_a_number_that_the_server_stores_as_text_is_not_lost() -> None:
    assert lost(spec(cpu=1), spec(cpu="1"), owned(cpu={})) == []


@pytest.mark.parametrize(
    ("wanted", "live", "ours", "theirs", "path"),
    [
        (spec(a=1, b=1), spec(a=2, b=1), owned(b={}), owned(a={}), ".spec.a"),
        (spec(a={"b": 1}), spec(a={"b": 2}), owned(z={}), owned(a={"f:b": {}}), ".spec.a.b"),
        (spec(a={"b": 1}), spec(a={"b": 2}), owned(z={}), owned(a={}), ".spec.a.b"),
        (
            container(image="1"),
            container(image="2"),
            owned_container(),
            owned_container(image={}),
            '.spec.containers[name="web"].image',
        ),
        (
            spec(ports=[{"port": 80}]),
            spec(ports=[{"port": 81}]),
            {"f:spec": {"f:type": {}}},
            owned(ports={'k:{"port":81}': {".": {}}}),
            ".spec.ports",
        ),
        (
            container(image="1"),
            spec(containers=[{"name": "other"}]),
            owned(containers={'k:{"name":"old"}': {}}),
            owned(containers={'k:{"name":"other"}': {}}),
            '.spec.containers[name="web"]',
        ),
        (
            spec(items=["a", "b"]),
            spec(items=["a", "c"]),
            owned(items={'v:"a"': {}}),
            owned(items={'v:"c"': {}}),
            '.spec.items[="b"]',
        ),
    ],
)
def test_a_field_changed_by_another_manager_is_lost_to_it(
    wanted: dict[str, Any],
    live: dict[str, Any],
    ours: dict[str, Any],
    theirs: dict[str, Any],
    path: str,
) -> None:
    assert lost(wanted, live, ours, theirs) == [(path, (THEIRS,))]


def test_a_removed_field_is_lost_without_a_manager() -> None:
    assert lost(spec(a=1, b=1), spec(b=1), owned(b={}), owned(c={})) == [(".spec.a", ())]


def test_without_an_entry_of_ours_every_difference_is_lost() -> None:
    assert lost(spec(a=1, b=1), spec(a=2, b=1), None, owned(a={})) == [(".spec.a", (THEIRS,))]


def test_a_label_taken_by_another_manager_is_lost() -> None:
    wanted = {"metadata": {"name": "a", "labels": {"x.y/z": "1"}}}
    live = {"metadata": {"name": "a", "labels": {"x.y/z": "2"}}}
    theirs: Document = {"f:metadata": {"f:labels": {"f:x.y/z": {}}}}
    assert lost(wanted, live, {}, theirs) == [(".metadata.labels.x.y/z", (THEIRS,))]


def test_unread_fields_of_a_partly_read_object_are_judged_by_their_managers() -> None:
    wanted = {"apiVersion": "v1", "metadata": {"name": "a"}, "data": {"a": "1", "b": "1"}}
    live = {"apiVersion": "v1", "metadata": {"name": "a"}}
    both_fields: Document = {"f:data": {"f:a": {}, "f:b": {}}}
    assert lost(wanted, live, both_fields, metadata_only=True) == []
    ours: Document = {"f:data": {"f:b": {}}}
    theirs: Document = {"f:data": {"f:a": {}}}
    lost_fields = lost(wanted, live, ours, theirs, metadata_only=True)
    assert lost_fields == [(".data.a", (THEIRS,))]


def test_a_union_contains_the_fields_of_all_entries() -> None:
    first_entry: Document = {"f:spec": {"f:a": {}, "f:b": {".": {}}}}
    second_entry: Document = {"f:spec": {"f:b": {"f:c": {}}}, "f:data": {}}
    assert union([first_entry, second_entry]) == {
        "f:spec": {"f:a": {}, "f:b": {".": {}, "f:c": {}}},
        "f:data": {},
    }


@pytest.mark.parametrize(
    ("manager", "related"),
    [("natsctl/old", True), ("natsctl", False), ("natsctl-x/a", False), ("kubectl", False)],
)
def test_managers_of_a_family_share_the_part_before_the_slash(manager: str, related: bool) -> None:  # noqa: FBT001 - a test parameter
    assert same_family(OURS, manager) is related
