"""How a controller class declares the kinds that it works with."""

import pytest

import natsctl
from natsctl.controller.slots.declare import only_primary, primary, secondary, slots, tertiary
from natsctl.controller.slots.secondary import Secondary
from natsctl.core.objects.primary import Primary, Tertiary
from natsctl.errors import UsageError
from tests.support.stores.sample_objects import THINGS, Thing

PLAIN = natsctl.kv(dict, bucket="plain")


class Base:
    things = primary(THINGS)
    parts = secondary(natsctl.kv(Thing, bucket="parts"))


class Whole(Base):
    defaults = tertiary(PLAIN, indexes={"all": lambda _: ["x"]})
    other = 1


def test_slots_are_known_by_name_role_and_kind() -> None:
    found = {slot.name: (slot.role, slot.kind.name) for slot in slots(Whole)}
    assert found == {
        "things": (Primary, "Thing.things"),
        "parts": (Secondary, "Thing.parts"),
        "defaults": (Tertiary, "dict.plain"),
    }


def test_inherited_slots_come_first_each_in_the_order_of_its_class() -> None:
    assert [slot.name for slot in slots(Whole)] == ["things", "parts", "defaults"]


def test_a_slot_keeps_its_indexes() -> None:
    assert list(Whole.defaults.indexes) == ["all"]
    assert Whole.things.indexes == {}


def test_a_subclass_may_replace_a_slot() -> None:
    class Other(Base):
        things = primary(natsctl.kv(Thing, bucket="others"))

    assert [slot.kind.name for slot in slots(Other)] == ["Thing.others", "Thing.parts"]


def test_a_subclass_may_drop_a_slot() -> None:
    class Less(Base):
        parts = None  # type: ignore[assignment]  # that is what is tested

    assert [slot.name for slot in slots(Less)] == ["things"]


def test_on_the_class_a_slot_is_its_declaration() -> None:
    assert Whole.things.kind is THINGS


def test_on_an_instance_it_says_that_it_is_not_open_yet() -> None:
    with pytest.raises(UsageError, match=r"Whole\.things cannot be used yet.*ControllerRuntime"):
        Whole().things  # noqa: B018 - that is what is tested


def test_on_an_instance_it_is_what_the_runtime_put_there() -> None:
    whole = Whole()
    vars(whole)["things"] = "the real one"
    found: object = whole.things
    assert found == "the real one"


def test_the_one_primary_is_found() -> None:
    assert only_primary(Whole).name == "things"


def test_a_class_without_a_primary_is_refused_with_what_to_write() -> None:
    class Nothing:
        parts = secondary(THINGS)

    with pytest.raises(UsageError, match=r"Nothing needs exactly one primary.*has none"):
        only_primary(Nothing)


def test_a_class_with_two_primaries_is_refused_with_their_names() -> None:
    class Both:
        one = primary(THINGS)
        two = primary(THINGS)

    with pytest.raises(UsageError, match=r"Both needs exactly one primary.*has one, two"):
        only_primary(Both)


def test_a_secondary_of_a_kind_without_labels_is_refused() -> None:
    with pytest.raises(UsageError, match="no labels, finalizers or status"):
        secondary(PLAIN)
