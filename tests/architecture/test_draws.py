"""Tests that a test in virtual time draws the same random numbers in each run."""

import random

import pytest

from natsctl.core.coordination.lease import Lease, new_identity


@pytest.mark.virtual
def test_the_draws_of_a_test_in_virtual_time_depend_on_its_name(
    request: pytest.FixtureRequest,
) -> None:
    seeded = random.Random(request.node.nodeid)
    assert random.random() == seeded.random()


@pytest.mark.virtual
def test_the_names_of_processes_in_virtual_time_depend_on_the_name_of_the_test(
    request: pytest.FixtureRequest,
) -> None:
    seeded = random.Random(request.node.nodeid)
    sessions = [Lease("apps", new_identity(), 10.0).session for _ in range(2)]
    assert sessions == [f"simulated:1:{seeded.randbytes(4).hex()}" for _ in range(2)]
