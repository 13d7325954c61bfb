"""The kinds that controllers of each surface use, with the role of their objects."""

from controllers.audit import Audit
from controllers.greetings import Greetings
from natsctl.daemon.kinds import UsedKind, kinds_of
from tests.support.controllers.disk_reconciler import ManagedDisks


def roles(used: list[UsedKind]) -> list[tuple[str, str, bool]]:
    return [(used_kind.slot, used_kind.role, used_kind.written) for used_kind in used]


def test_the_slots_of_a_controller_have_their_roles() -> None:
    assert roles(list(kinds_of(Greetings()))) == [
        ("greetings", "primary", True),
        ("routes", "secondary", True),
        ("defaults", "tertiary", False),
    ]


def test_a_managed_kind_is_a_primary_that_gets_a_finalizer() -> None:
    assert roles(list(kinds_of(ManagedDisks()))) == [("", "primary", True)]


def test_a_watched_kind_is_only_read_without_a_finalizer() -> None:
    assert {(used.role, used.written) for used in kinds_of(Audit())} == {("tertiary", False)}
