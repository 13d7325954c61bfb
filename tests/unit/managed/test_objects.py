"""Changes of a managed object by its client, and the document that is stored."""

import json
from typing import Any

from natsctl import Object, kv
from natsctl.managed import Condition, Managed
from natsctl.model.store import Stored
from tests.support.controllers.disk_reconciler import EPOCH, NAMES, clock


class Nested(Object, frozen=True):
    spec: dict[str, Any]


NESTED = kv(Nested, bucket="nested")


def managed_of(document: dict[str, Any]) -> Managed[Nested]:
    return Managed(NESTED, Stored("a", 7, json.dumps(document).encode()), names=NAMES, clock=clock)


def test_fields_and_map_keys_may_be_added() -> None:
    managed = managed_of({"spec": {"tags": {"x": "1"}, "unset": None}})
    managed.spec["tags"]["y"] = "2"
    managed.spec["unset"] = 3
    managed.spec["new"] = {"deep": True}
    assert managed.additions() == {"tags": {"y": "2"}, "unset": 3, "new": {"deep": True}}


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
