"""The fixture of scenarios."""

import pytest

from natsctl.testing import MemoryStores


@pytest.fixture
def stores() -> MemoryStores:
    return MemoryStores()
