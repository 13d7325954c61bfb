"""The controller that a command is about."""

import pytest

from natsctl.cli.arguments import controller_name


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("greetings", "greetings"),
        ("controllers.greetings:Greetings", "greetings"),
        ("controllers.audit:Audit", "audit"),
    ],
)
def test_a_controller_is_named_by_its_name_or_by_its_class_of_any_surface(
    named: str, name: str
) -> None:
    assert controller_name(named) == name
