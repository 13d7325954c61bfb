"""The fixture of all integration tests."""

import pytest

from tests.support.patience import wait_patiently


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_patiently(monkeypatch)
