"""The fixtures of fault tests."""

import pytest

from tests.support.patience import wait_patiently


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let natsctl wait longer, in tests whose faults are no silence of a server."""
    wait_patiently(monkeypatch)
