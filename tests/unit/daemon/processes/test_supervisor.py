"""The end of one process ends all only if a restart would end the same way."""

import pytest

from natsctl.daemon.processes.child import ChildExit
from natsctl.daemon.processes.supervisor import ends_all


@pytest.mark.parametrize(
    ("status", "worked", "expected"),
    [
        (2, True, True),
        (1, False, True),
        (1, True, False),
        (0, True, False),
        (-9, False, False),
        (-11, True, False),
    ],
)
def test_only_an_error_that_a_restart_repeats_ends_all(
    status: int, *, worked: bool, expected: bool
) -> None:
    assert ends_all(ChildExit(status), worked=worked) is expected
