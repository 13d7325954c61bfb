"""Declaration of a controller's primary, secondaries and tertiaries."""

import pytest

import natsctl
from natsctl import Primary, Secondary, Tertiary, primary, secondary, tertiary
from natsctl.controller.slots.declare import only_primary, slots
from natsctl.errors import UsageError
from tests.support.stores.sample_objects import THINGS, Thing

PLAIN = natsctl.kv(dict, bucket="plain")


class Base:
    things = primary(THINGS)
    parts = secondary(natsctl.kv(Thing, bucket="parts"))


class Whole(Base):
    defaults = tertiary(PLAIN, indexes={"all": lambda _: ["x"]})
    other = 1


def test_slots_have_a_name_a_role_and_a_kind() -> None:
    described = {slot.name: (slot.role, slot.kind.name) for slot in slots(Whole)}
    assert described == {
        "things": (Primary, "Thing.things"),
        "parts": (Secondary, "Thing.parts"),
        "defaults": (Tertiary, "dict.plain"),
    }


def test_inherited_slots_come_first() -> None:
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
        parts = None  # type: ignore[assignment]  # a subclass drops the slot

    assert [slot.name for slot in slots(Less)] == ["things"]


def test_access_on_the_class_returns_the_declaration() -> None:
    assert Whole.things.kind is THINGS


def test_access_on_an_instance_before_it_is_opened_is_refused() -> None:
    with pytest.raises(UsageError, match=r"Whole\.things cannot be used yet.*ControllerRuntime"):
        Whole().things  # noqa: B018 - the access raises


def test_access_on_an_opened_instance_returns_the_set_value() -> None:
    controller = Whole()
    vars(controller)["things"] = "the real one"
    opened: object = controller.things
    assert opened == "the real one"


def test_only_primary_returns_the_single_primary() -> None:
    assert only_primary(Whole).name == "things"


def test_a_class_without_a_primary_is_refused() -> None:
    class Nothing:
        parts = secondary(THINGS)

    with pytest.raises(UsageError, match=r"Nothing needs exactly one primary.*has none"):
        only_primary(Nothing)


def test_a_class_with_two_primaries_is_refused() -> None:
    class Both:
        one = primary(THINGS)
        two = primary(THINGS)

    with pytest.raises(UsageError, match=r"Both needs exactly one primary.*has one, two"):
        only_primary(Both)


def test_a_secondary_of_a_kind_without_labels_is_refused() -> None:
    with pytest.raises(UsageError, match="no labels, finalizers or status"):
        secondary(PLAIN)
