"""Tests that a test in virtual time draws the same random numbers in each run."""

import random

import pytest


@pytest.mark.virtual
def test_the_draws_of_a_test_in_virtual_time_depend_on_its_name(
    request: pytest.FixtureRequest,
) -> None:
    seeded = random.Random(request.node.nodeid)
    assert random.random() == seeded.random()
