"""Fixtures of scenarios."""

import pytest

from natsctl.testing import MemoryStores
from tests.support.controllers.recording_watcher import Sites


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()


@pytest.fixture
def sites() -> Sites:
    return Sites()
