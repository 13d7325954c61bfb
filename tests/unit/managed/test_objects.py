"""Changes of a managed object by its client, and the document that is stored."""

import json
from typing import Any

import msgspec
import pytest

from natsctl import Object, UsageError, kv
from natsctl.managed import FINALIZER_NAME, Condition, Managed
from natsctl.model.store import Stored
from tests.support.controllers.disk_reconciler import EPOCH, NAMES, clock


class Nested(Object, frozen=True):
    spec: dict[str, Any]


NESTED = kv(Nested, bucket="nested")


def managed_of(document: dict[str, Any]) -> Managed[Nested]:
    return Managed(NESTED, Stored("a", 7, json.dumps(document).encode()), names=NAMES, clock=clock)


def test_a_new_managed_object_has_no_changes() -> None:
    managed = managed_of({"spec": {"a": {"b": [1]}}, "status": {"c": 1}})
    assert (managed.additions(), managed.changed_annotations, managed.status_patch) == ({}, {}, {})


def test_changes_do_not_affect_the_object_that_was_read() -> None:
    managed = managed_of({"spec": {"a": {"b": [1]}}})
    managed.spec["a"]["b"].append(2)
    assert managed.object.spec == {"a": {"b": [1]}}
    with pytest.raises(UsageError, match=r"spec\.a\.b"):
        managed.additions()


def test_fields_and_map_keys_may_be_added() -> None:
    managed = managed_of({"spec": {"tags": {"x": "1"}, "unset": None}})
    managed.spec["tags"]["y"] = "2"
    managed.spec["unset"] = 3
    managed.spec["new"] = {"deep": True}
    assert managed.additions() == {"tags": {"y": "2"}, "unset": 3, "new": {"deep": True}}


def test_removal_of_a_set_field_is_refused() -> None:
    managed = managed_of({"spec": {"tags": {"x": "1"}}})
    del managed.spec["tags"]["x"]
    with pytest.raises(UsageError, match=r"spec\.tags\.x"):
        managed.additions()


def test_the_status_patch_contains_only_differences() -> None:
    managed = managed_of({"spec": {}, "status": {"a": {"b": 1, "c": 2}, "gone": 1}})
    managed.status["a"]["b"] = 9
    del managed.status["gone"]
    assert managed.status_patch == {"a": {"b": 9}, "gone": None}


async def test_advance_keeps_the_pending_status() -> None:
    managed = managed_of({"spec": {}, "status": {"a": 1}})
    managed.status["b"] = 2
    managed.set_conditions(Condition.creating())
    managed.advance(Stored("a", 8, b'{"spec": {"x": 1}, "status": {"a": 5}}'))
    assert (managed.status["a"], managed.status["b"]) == (5, 2)
    assert managed.spec == {"x": 1}
    assert managed.set_types == {"Ready"}


async def test_reset_drops_all_pending_changes() -> None:
    managed = managed_of({"spec": {}})
    managed.status["b"] = 2
    managed.annotations["c"] = "3"
    managed.set_conditions(Condition.creating())
    managed.reset(managed.stored)
    assert (managed.status, managed.annotations, managed.set_types) == ({}, {}, set())


def test_the_external_name_is_an_annotation() -> None:
    managed = managed_of({"spec": {}})
    assert managed.external_name == ""
    managed.external_name = "disk-1"
    assert managed.changed_annotations == {"natsctl.io/external-name": "disk-1"}


async def test_conditions_get_the_time_of_the_clock() -> None:
    managed = managed_of({"spec": {}})
    managed.set_conditions(Condition.available())
    available = managed.condition("Ready")
    assert available is not None
    expected = EPOCH.isoformat(timespec="seconds").replace("+00:00", "Z")
    assert available.last_transition_time == expected
    assert managed.condition("Other") is None


def test_the_document_keeps_unknown_fields() -> None:
    managed = managed_of(
        {
            "metadata": {"finalizers": ["other"], "labels": {"l": "1"}, "strange": True},
            "spec": {"a": 1},
            "status": {"s": 1},
            "also": "strange",
        }
    )
    document = msgspec.json.decode(managed.document(spec={"b": 2}))
    metadata: dict[str, Any] = document["metadata"]
    assert (document["also"], document["status"]) == ("strange", {"s": 1})
    assert (metadata["strange"], metadata["labels"]) == (True, {"l": "1"})
    assert metadata["finalizers"] == ["other", FINALIZER_NAME]
    assert document["spec"] == {"a": 1, "b": 2}
    assert metadata["generation"] == 1
