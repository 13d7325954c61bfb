"""Detection of manifests that are already applied."""

from typing import Any

import msgspec
import pytest

from natsctl.controller.slots.last_applied import LastApplied
from natsctl.model.store import Stored


def manifest(**data: Any) -> dict[str, object]:
    return {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}


def stored(document: dict[str, object], revision: int = 1, **more: object) -> Stored:
    return Stored("default/a", revision, msgspec.json.encode({**document, **more}))


@pytest.fixture
def last() -> LastApplied:
    return LastApplied("natsctl.io/applied")


def test_an_object_with_all_fields_of_the_manifest_is_current(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    assert last.is_current(wanted, stored(wanted, spec={"added": "by the server"}))


def test_an_object_with_another_field_value_is_not_current(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    edited = {**wanted, "data": {"a": "2"}}
    assert not last.is_current(wanted, stored(edited))


def test_an_object_without_our_digest_is_not_current(last: LastApplied) -> None:
    assert not last.is_current(last.sealed(manifest(a="1")), stored(manifest(a="1")))


def test_a_manifest_without_a_former_field_is_not_current(last: LastApplied) -> None:
    before = last.sealed(manifest(a="1", b="2"))
    assert not last.is_current(last.sealed(manifest(a="1")), stored(before))


def test_the_digest_ignores_the_order_of_fields(last: LastApplied) -> None:
    assert last.sealed({"a": 1, "b": {"c": 2, "d": 3}}) == last.sealed(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )


def test_values_normalized_by_the_server_are_current_after_an_apply(
    last: LastApplied,
) -> None:
    wanted = last.sealed(manifest(cpu="1000m"))
    normalized = stored({**wanted, "data": {"cpu": "1"}})
    assert not last.is_current(wanted, normalized)
    last.applied(wanted, normalized)
    assert last.is_current(wanted, normalized)
    assert not last.is_current(wanted, stored({**wanted, "data": {"cpu": "2"}}, 2))


def test_an_object_that_shows_the_manifest_takes_no_memory(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    last.applied(wanted, stored({**wanted, "data": {"a": "one"}}))
    assert len(last) == 1
    last.applied(wanted, stored(wanted))
    assert len(last) == 0


def test_a_deleted_object_takes_no_memory(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    last.applied(wanted, stored({**wanted, "data": {"a": "one"}}))
    last.deleted("default/a")
    assert len(last) == 0


def test_list_items_added_by_the_server_are_current_only_after_an_apply(
    last: LastApplied,
) -> None:
    wanted = last.sealed(manifest(items=[{"name": "a"}]))
    normalized = stored({**wanted, "data": {"items": [{"name": "a"}, {"name": "injected"}]}})
    assert not last.is_current(wanted, normalized)
    last.applied(wanted, normalized)
    assert last.is_current(wanted, normalized)


def test_extra_fields_of_a_list_item_are_ignored(last: LastApplied) -> None:
    wanted = last.sealed(manifest(items=[{"name": "a"}]))
    assert last.is_current(wanted, stored({**wanted, "data": {"items": [{"name": "a", "x": 1}]}}))


def test_a_partly_read_object_is_current_only_at_its_applied_revision() -> None:
    last = LastApplied("natsctl.io/applied", partly=True)
    wanted = last.sealed(manifest(a="1"))
    assert not last.is_current(wanted, stored(wanted, 7))
    last.applied(wanted, stored(wanted, 7))
    assert last.is_current(wanted, stored(wanted, 7))
    assert not last.is_current(wanted, stored(wanted, 8))
