"""Tests the log lines about orphans that are kept."""

import pytest

from natsctl.controller.sync.events import SyncReports
from natsctl.core.sync.history import SyncHistory
from natsctl.model.garbage import UNMARKED, GarbagePlan, Orphan


def plan(held: str) -> GarbagePlan:
    orphan = Orphan(
        kind="ConfigMap",
        key="default/shop",
        revision=1,
        owner="shop",
        reason="",
        proven=True,
        suspected_s=0,
        due=True,
        held=held,
    )
    return GarbagePlan((orphan,))


@pytest.mark.parametrize(
    ("held", "lines"), [(UNMARKED, 1), ("it belongs to other, whose next sync …", 0), ("", 0)]
)
def test_only_orphans_without_an_installation_are_logged_as_such(
    held: str, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    SyncReports(SyncHistory("things")).refused(plan(held))
    assert [("carry no installation" in message) for message in caplog.messages] == [True] * lines
