"""Whether applying a manifest once more would change anything."""

from typing import Any

import msgspec
import pytest

from natsctl.controller.slots.last_applied import LastApplied
from natsctl.model.store import Stored


def manifest(**data: Any) -> dict[str, object]:
    return {"kind": "ConfigMap", "metadata": {"name": "a"}, "data": data}


def kept(document: dict[str, object], revision: int = 1, **more: object) -> Stored:
    return Stored("default/a", revision, msgspec.json.encode({**document, **more}))


@pytest.fixture
def last() -> LastApplied:
    return LastApplied("natsctl.io/applied")


def test_an_object_that_says_all_of_it_is_current(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    assert last.is_current(wanted, kept(wanted, spec={"added": "by the server"}))


def test_an_object_that_says_something_else_is_not(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    edited = {**wanted, "data": {"a": "2"}}
    assert not last.is_current(wanted, kept(edited))


def test_an_object_without_our_digest_is_not(last: LastApplied) -> None:
    assert not last.is_current(last.sealed(manifest(a="1")), kept(manifest(a="1")))


def test_a_field_that_is_said_no_more_makes_another_manifest(last: LastApplied) -> None:
    before = last.sealed(manifest(a="1", b="2"))
    assert not last.is_current(last.sealed(manifest(a="1")), kept(before))


def test_equal_manifests_have_equal_digests_however_they_are_laid_out(last: LastApplied) -> None:
    assert last.sealed({"a": 1, "b": {"c": 2, "d": 3}}) == last.sealed(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )


def test_what_a_server_made_of_a_manifest_is_no_reason_to_apply_it_again(
    last: LastApplied,
) -> None:
    wanted = last.sealed(manifest(cpu="1000m"))
    made = kept({**wanted, "data": {"cpu": "1"}})
    assert not last.is_current(wanted, made)
    last.applied(wanted, made)
    assert last.is_current(wanted, made)
    assert not last.is_current(wanted, kept({**wanted, "data": {"cpu": "2"}}, 2))


def test_nothing_is_remembered_of_what_shows(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    last.applied(wanted, kept({**wanted, "data": {"a": "one"}}))
    assert len(last) == 1
    last.applied(wanted, kept(wanted))
    assert len(last) == 0


def test_nothing_is_remembered_of_what_was_deleted(last: LastApplied) -> None:
    wanted = last.sealed(manifest(a="1"))
    last.applied(wanted, kept({**wanted, "data": {"a": "one"}}))
    last.deleted("default/a")
    assert len(last) == 0


def test_items_that_a_server_adds_to_a_list_are_a_difference_until_applied(
    last: LastApplied,
) -> None:
    wanted = last.sealed(manifest(items=[{"name": "a"}]))
    made = kept({**wanted, "data": {"items": [{"name": "a"}, {"name": "injected"}]}})
    assert not last.is_current(wanted, made)
    last.applied(wanted, made)
    assert last.is_current(wanted, made)


def test_items_are_compared_by_what_the_manifest_says_of_them(last: LastApplied) -> None:
    wanted = last.sealed(manifest(items=[{"name": "a"}]))
    assert last.is_current(wanted, kept({**wanted, "data": {"items": [{"name": "a", "x": 1}]}}))


def test_of_objects_seen_in_part_only_the_state_that_was_applied_is_current() -> None:
    last = LastApplied("natsctl.io/applied", partly=True)
    wanted = last.sealed(manifest(a="1"))
    assert not last.is_current(wanted, kept(wanted, 7))
    last.applied(wanted, kept(wanted, 7))
    assert last.is_current(wanted, kept(wanted, 7))
    assert not last.is_current(wanted, kept(wanted, 8))
