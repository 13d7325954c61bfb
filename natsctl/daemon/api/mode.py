"""Names the mode in which a daemon runs a controller: alone, leader-elected or sharded."""

from enum import StrEnum

from natsctl.core.coordination.election import Election
from natsctl.core.coordination.sharding import Shard, ShardState
from natsctl.daemon.operator import Participation


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


def configured_mode(participation: Participation | None, *, dry_run: bool = False) -> Mode:
    """Return the mode of a daemon with this participation."""
    if dry_run:
        return Mode.DRY_RUN
    match participation:
        case Election():
            return Mode.ELECTED
        case Shard():
            return Mode.SHARED
        case None:
            return Mode.ALONE


def current_mode(participation: Participation | None, *, dry_run: bool = False) -> str:
    """Return the mode and the daemon's present part in it, as `natsctl status` shows them."""
    if dry_run:
        return Mode.DRY_RUN.value
    match participation:
        case Election():
            return "leader" if participation.state().leads else "standby"
        case Shard():
            return _shard_of(participation.state())
        case None:
            return Mode.ALONE.value


def _shard_of(state: ShardState) -> str:
    if state.identity not in state.members:
        return Mode.SHARED.value
    members = sorted(state.members)
    return f"shard {members.index(state.identity) + 1} of {len(members)}"


def counted(mode: str, alone: int) -> str:
    """Return the mode of a daemon, with the number of daemons that run *alone* if it disturbs."""
    return f"{mode} \N{MULTIPLICATION SIGN}{alone}" if mode == Mode.ALONE and alone > 1 else mode
