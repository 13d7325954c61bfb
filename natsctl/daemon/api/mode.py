"""Names the mode in which a daemon runs a controller: alone, leader-elected or sharded."""

from enum import StrEnum

from natsctl.core.coordination.election import Election
from natsctl.core.coordination.sharding import Shard


class Mode(StrEnum):
    """The mode in which a daemon runs its controllers."""

    ALONE = "alone"
    ELECTED = "leader-elect"
    SHARED = "shard"
    DRY_RUN = "dry-run"
    UNKNOWN = ""

    @property
    def option(self) -> str:
        """The command line options of the mode."""
        return "without --leader-elect or --shard" if self is Mode.ALONE else f"with --{self}"


def configured_mode(
    election: Election | None, shard: Shard | None, *, dry_run: bool = False
) -> Mode:
    """Return the mode of a daemon with this election or membership."""
    if dry_run:
        return Mode.DRY_RUN
    if election is not None:
        return Mode.ELECTED
    return Mode.ALONE if shard is None else Mode.SHARED


def current_mode(election: Election | None, shard: Shard | None, *, dry_run: bool = False) -> str:
    """Return the mode and the daemon's present part in it, as `natsctl status` shows them."""
    if dry_run:
        return Mode.DRY_RUN.value
    if election is not None:
        return "leader" if election.state().leads else "standby"
    if shard is None:
        return Mode.ALONE.value
    state = shard.state()
    if state.identity not in state.members:
        return Mode.SHARED.value
    members = sorted(state.members)
    return f"shard {members.index(state.identity) + 1} of {len(members)}"


def counted(mode: str, alone: int) -> str:
    """Return the mode of a daemon, with the number of daemons that run *alone* if it disturbs."""
    return f"{mode} \N{MULTIPLICATION SIGN}{alone}" if mode == Mode.ALONE and alone > 1 else mode


def trouble_of(election: Election | None, shard: Shard | None) -> str:
    """Return why this daemon does not take part in the election or sharding; empty if it does."""
    participant = election or shard
    return "" if participant is None else participant.state().trouble
