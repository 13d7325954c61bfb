"""A daemon logs a warning for each other daemon that runs the same controller in conflict."""

import json

import msgspec
import pytest

from natsctl.core.coordination.lease import Workload
from natsctl.daemon.messages import ControllerStatus, DaemonProcess
from natsctl.daemon.peers import Mode, Peers, Presence, conflict

SUBJECT = "natsctl.api.status.apps"


def process(name: str) -> DaemonProcess:
    return DaemonProcess(id=name, host=name, pid=1, version="1", started="2030-01-01T00:00:00Z")


def presence(name: str, mode: Mode = Mode.ALONE, owner: str = "App.apps") -> Presence:
    return Presence(daemon=process(name), mode=mode, work=Workload(owner))


def meet(peers: Peers, presence: Presence) -> bytes | None:
    return peers.meet(msgspec.json.encode(presence))


@pytest.mark.parametrize(
    ("mode", "other_mode", "disturbs"),
    [
        (Mode.ALONE, Mode.ALONE, True),
        (Mode.ALONE, Mode.ELECTED, True),
        (Mode.ALONE, Mode.SHARED, True),
        (Mode.ALONE, Mode.UNKNOWN, True),
        (Mode.ELECTED, Mode.SHARED, True),
        (Mode.ELECTED, Mode.ELECTED, False),
        (Mode.SHARED, Mode.SHARED, False),
        (Mode.ELECTED, Mode.UNKNOWN, False),
    ],
)
def test_two_daemons_disturb_each_other_unless_their_modes_coordinate(
    mode: Mode, other_mode: Mode, *, disturbs: bool
) -> None:
    assert presence("a", mode).disturbs(presence("b", other_mode)) is disturbs
    assert presence("a", other_mode).disturbs(presence("b", mode)) is disturbs


def test_a_second_daemon_in_mode_alone_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peers = Peers("apps", presence("a"), SUBJECT)
    for _ in range(3):
        assert meet(peers, presence("b")) is not None
    assert caplog.text.count("every key is synced more than once controller=apps") == 1
    assert "run all its daemons with --leader-elect, or all with --shard" in caplog.text
    meet(peers, presence("c"))
    assert caplog.text.count("b:1 (without --leader-elect or --shard), c:1") == 1


def test_the_warning_names_the_mode_of_each_daemon(caplog: pytest.LogCaptureFixture) -> None:
    meet(Peers("apps", presence("a", Mode.ELECTED), SUBJECT), presence("b", Mode.SHARED))
    assert "daemons='b:1 (with --shard)' this_daemon='with --leader-elect'" in caplog.text


def test_elected_daemons_do_not_warn(caplog: pytest.LogCaptureFixture) -> None:
    meet(Peers("apps", presence("a", Mode.ELECTED), SUBJECT), presence("b", Mode.ELECTED))
    assert caplog.text == ""


def test_the_warning_names_another_controller_of_the_same_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meet(Peers("apps", presence("a"), SUBJECT), presence("b", owner="Site.sites"))
    assert "b:1 runs another controller that is named apps too" in caplog.text


def test_a_daemon_ignores_its_own_presence(caplog: pytest.LogCaptureFixture) -> None:
    meet(Peers("apps", presence("a"), SUBJECT), presence("a"))
    assert caplog.text == ""


@pytest.mark.parametrize("data", [b"", b"?", b"{}", b"[1]", b"\xff", b"[" * 100_000])
def test_an_invalid_presence_is_ignored(data: bytes) -> None:
    assert Peers("apps", presence("a"), SUBJECT).meet(data) is None


def test_warnings_about_many_daemons_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    peers = Peers("apps", presence("a"), SUBJECT)
    for number in range(1000):
        meet(peers, presence(f"b{number}"))
    assert len(caplog.records) <= 100
    assert all(len(record.getMessage()) < 1000 for record in caplog.records)


def test_a_daemon_of_version_0_1_answers_with_its_status() -> None:
    status = {"controller": "apps", "daemon": msgspec.to_builtins(process("old")), "state": "x"}
    old = msgspec.json.decode(json.dumps(status), type=Presence)
    assert (old.mode, old.daemon.host) == (Mode.UNKNOWN, "old")


@pytest.mark.parametrize(
    ("modes", "why"),
    [
        (["alone"], ""),
        (["alone", ""], ""),
        (["leader", "standby", "standby"], ""),
        (["shard 1 of 2", "shard 2 of 2", "shard"], ""),
        (["alone", "alone"], "2 daemons run alone"),
        (["alone", "leader"], "different modes"),
        (["standby", "shard 1 of 1"], "different modes"),
    ],
)
def test_conflict_describes_daemons_in_conflicting_modes(modes: list[str], why: str) -> None:
    statuses = [
        ControllerStatus(controller="apps", daemon=process(mode), state="syncing", mode=mode)
        for mode in modes
    ]
    assert (why in conflict(statuses)) if why else conflict(statuses) == ""


def test_daemons_in_two_clusters_are_in_conflict() -> None:
    statuses = [
        ControllerStatus(
            controller="apps",
            daemon=process(cluster),
            state="syncing",
            mode=f"shard {number} of 2",
            cluster=cluster,
        )
        for number, cluster in enumerate(("one", "two", "", "one"), 1)
    ]
    assert "different Kubernetes clusters, one, two: give all its daemons" in conflict(statuses)
    assert conflict(statuses[::3]) == ""
