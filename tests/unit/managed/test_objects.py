"""What was changed on a managed object, and what is stored of it."""

import json
from typing import Any

import pytest

from natsctl import Object, UsageError, kv
from natsctl.managed import Condition, Managed
from natsctl.model import documents
from natsctl.model.store import Stored
from tests.support.controllers.disk_reconciler import EPOCH, NAMES, clock


class Nested(Object, frozen=True):
    spec: dict[str, Any]


NESTED = kv(Nested, bucket="nested")


def managed_of(document: dict[str, Any]) -> Managed[Nested]:
    return Managed(NESTED, Stored("a", 7, json.dumps(document).encode()), names=NAMES, clock=clock)


def test_nothing_is_changed_at_first() -> None:
    managed = managed_of({"spec": {"a": {"b": [1]}}, "status": {"c": 1}})
    assert (managed.additions(), managed.changed_annotations, managed.status_patch) == ({}, {}, {})


def test_a_change_is_no_change_of_what_was_read() -> None:
    managed = managed_of({"spec": {"a": {"b": [1]}}})
    managed.spec["a"]["b"].append(2)
    assert managed.object.spec == {"a": {"b": [1]}}
    with pytest.raises(UsageError, match=r"spec\.a\.b"):
        managed.additions()


def test_fields_and_keys_of_maps_may_be_added() -> None:
    managed = managed_of({"spec": {"tags": {"x": "1"}, "unset": None}})
    managed.spec["tags"]["y"] = "2"
    managed.spec["unset"] = 3
    managed.spec["new"] = {"deep": True}
    assert managed.additions() == {"tags": {"y": "2"}, "unset": 3, "new": {"deep": True}}


def test_what_was_set_may_not_be_taken_away() -> None:
    managed = managed_of({"spec": {"tags": {"x": "1"}}})
    del managed.spec["tags"]["x"]
    with pytest.raises(UsageError, match=r"spec\.tags\.x"):
        managed.additions()


def test_a_status_is_changed_by_what_differs_only() -> None:
    managed = managed_of({"spec": {}, "status": {"a": {"b": 1, "c": 2}, "gone": 1}})
    managed.status["a"]["b"] = 9
    del managed.status["gone"]
    assert managed.status_patch == {"a": {"b": 9}, "gone": None}


async def test_an_advance_keeps_the_status_that_is_to_be_stored() -> None:
    managed = managed_of({"spec": {}, "status": {"a": 1}})
    managed.status["b"] = 2
    managed.set_conditions(Condition.creating())
    managed.advance(Stored("a", 8, b'{"spec": {"x": 1}, "status": {"a": 5}}'))
    assert (managed.status["a"], managed.status["b"]) == (5, 2)
    assert managed.spec == {"x": 1}
    assert managed.set_types == {"Ready"}


async def test_a_reset_drops_everything() -> None:
    managed = managed_of({"spec": {}})
    managed.status["b"] = 2
    managed.annotations["c"] = "3"
    managed.set_conditions(Condition.creating())
    managed.reset(managed.stored)
    assert (managed.status, managed.annotations, managed.set_types) == ({}, {}, set())


def test_its_external_name_is_an_annotation() -> None:
    managed = managed_of({"spec": {}})
    assert managed.external_name == ""
    managed.external_name = "disk-1"
    assert managed.changed_annotations == {"natsctl.io/external-name": "disk-1"}


async def test_conditions_are_dated_by_its_clock() -> None:
    managed = managed_of({"spec": {}})
    managed.set_conditions(Condition.available())
    said = managed.condition("Ready")
    assert said is not None
    expected = EPOCH.isoformat(timespec="seconds").replace("+00:00", "Z")
    assert said.last_transition_time == expected
    assert managed.condition("Other") is None


def test_what_is_stored_keeps_what_nobody_knows_here() -> None:
    managed = managed_of(
        {
            "metadata": {"finalizers": ["other"], "labels": {"l": "1"}, "strange": True},
            "spec": {"a": 1},
            "status": {"s": 1},
            "also": "strange",
        }
    )
    document = documents.parse(managed.document(finalizer="mine", spec={"b": 2}))
    metadata: dict[str, Any] = documents.metadata_of(document)
    assert (document["also"], document["status"]) == ("strange", {"s": 1})
    assert (metadata["strange"], metadata["labels"]) == (True, {"l": "1"})
    assert metadata["finalizers"] == ["other", "mine"]
    assert document["spec"] == {"a": 1, "b": 2}
    assert metadata["generation"] == 1
