"""The doctor reports clock skew and probes the buckets that controllers use."""

from datetime import UTC, datetime, timedelta

import pytest

from controllers.audit import Audit
from controllers.greetings import Greetings
from controllers.streams import Streams
from natsctl.daemon.doctor.doctor import verbs_of
from natsctl.daemon.doctor.finding import Result, skew
from natsctl.daemon.kinds import used_by
from natsctl.daemon.messages import Verb
from natsctl.jetstream.probe import unused_key
from natsctl.model.keys import check_key, matches
from tests.support.controllers.disk_reconciler import ManagedDisks

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize("theirs", [-2.0, 0.0, 0.5, 1.0, 3.0])
def test_a_clock_within_the_measurement_error_is_ok(theirs: float) -> None:
    finding = skew("clock", NOON, after(theirs), after(1), 2.0)
    assert (finding.result, finding.found, finding.advice) == (
        Result.OK,
        "equal to the local clock",
        "",
    )


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (4.0, "3 s ahead of the local clock"),
        (-3.0, "3 s behind the local clock"),
        (3601.0, "3600 s ahead of the local clock"),
    ],
)
def test_a_clock_beyond_the_measurement_error_is_a_warning(theirs: float, message: str) -> None:
    finding = skew("clock", NOON, after(theirs), after(1), 2.0)
    assert (finding.result, finding.found) == (Result.WARNING, message)
    assert "NTP" in finding.advice


@pytest.mark.parametrize("keys", [">", "*", "sites.>", "sites.*.north", "*.*", "one.key"])
def test_a_probe_writes_to_a_key_within_the_declared_pattern(keys: str) -> None:
    assert matches(keys, check_key(unused_key(keys)))


def test_a_tertiary_bucket_is_not_written() -> None:
    used = {bucket_use.bucket: bucket_use.written for bucket_use in used_by([Greetings()])}
    assert used == {"greetings": True, "routes": True, "defaults": False, "natsctl": True}


def test_buckets_of_other_controller_types_are_used() -> None:
    assert ("streams", True) in {
        (bucket_use.bucket, bucket_use.written) for bucket_use in used_by([Streams()])
    }


@pytest.mark.parametrize("controller", [Audit, Streams, ManagedDisks])
def test_watchers_and_managed_controllers_answer_every_verb_but_those_about_garbage(
    controller: type[Audit] | type[Streams] | type[ManagedDisks],
) -> None:
    (verbs,) = verbs_of([controller()]).values()
    assert set(verbs) == {verb for verb in Verb if not verb.collects}


def test_a_controller_with_secondaries_answers_every_verb() -> None:
    assert verbs_of([Greetings()]) == {"greetings": tuple(Verb)}
