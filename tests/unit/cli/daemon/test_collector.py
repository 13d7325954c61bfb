"""A daemon spends little time in Python's garbage collector."""

import gc
from collections.abc import Iterator

import pytest

from natsctl.cli.serve import YOUNG_MAX, spare_collections


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the thresholds; the objects stay exempt, or later tests would visit all of them."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)


def test_present_objects_are_exempt_from_collections() -> None:
    present = [object]
    spare_collections()
    assert not any(item is present for item in gc.get_objects())


def test_new_objects_are_collected_less_often() -> None:
    spare_collections()
    assert gc.get_threshold()[0] == YOUNG_MAX


def test_collections_that_are_off_stay_off() -> None:
    gc.set_threshold(0)
    spare_collections()
    assert gc.get_threshold()[0] == 0


def test_a_higher_threshold_of_the_program_is_kept() -> None:
    gc.set_threshold(2 * YOUNG_MAX)
    spare_collections()
    assert gc.get_threshold()[0] == 2 * YOUNG_MAX
