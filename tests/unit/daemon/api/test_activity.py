"""The numbers of syncs in each interval of the last 15 minutes."""

from natsctl.daemon.messages import INTERVAL_S, INTERVALS
from natsctl.daemon.service import ActivityLog


def test_a_new_log_has_one_interval() -> None:
    activity = ActivityLog(0.0).read(1.0, (5, 2))
    assert (activity.syncs, activity.failures) == ([5], [2])


def test_each_interval_has_its_own_syncs_and_failures() -> None:
    log = ActivityLog(100.0)
    log.advance(100.0 + INTERVAL_S, (5, 2))
    log.advance(100.0 + 2 * INTERVAL_S, (6, 2))
    activity = log.read(101.0 + 2 * INTERVAL_S, (9, 3))
    assert (activity.syncs, activity.failures) == ([5, 1, 3], [2, 0, 1])


def test_the_first_of_several_missed_intervals_has_the_syncs_of_all() -> None:
    log = ActivityLog(0.0)
    activity = log.read(3.5 * INTERVAL_S, (7, 1))
    assert (activity.syncs, activity.failures) == ([7, 0, 0, 0], [1, 0, 0, 0])


def test_a_log_keeps_the_last_intervals_only() -> None:
    log = ActivityLog(0.0)
    for number in range(1, 10 * INTERVALS):
        log.advance(number * INTERVAL_S, (number, 0))
    activity = log.read((10 * INTERVALS - 1) * INTERVAL_S, (10 * INTERVALS, 0))
    assert activity.syncs == [1] * INTERVALS


def test_a_log_that_was_not_advanced_for_days_has_only_empty_intervals() -> None:
    log = ActivityLog(0.0)
    activity = log.read(1e6 * INTERVAL_S, (7, 7))
    assert (activity.syncs, activity.failures) == ([0] * INTERVALS, [0] * INTERVALS)


def test_a_read_between_two_intervals_changes_nothing() -> None:
    log = ActivityLog(0.0)
    assert log.read(1.0, (1, 0)) == log.read(1.0, (1, 0))
