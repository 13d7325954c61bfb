"""Names the mode in which a daemon runs a controller: alone, leader-elected or sharded."""

from enum import StrEnum

from natsctl.core.coordination.shares import Participation, ShareState


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
    if participation is None:
        return Mode.ALONE
    return Mode.SHARED if participation.leadership.shared else Mode.ELECTED


def current_mode(participation: Participation | None, *, dry_run: bool = False) -> str:
    """Return the mode and the daemon's present part in it, as `natsctl status` shows them."""
    if dry_run:
        return Mode.DRY_RUN.value
    if participation is None:
        return Mode.ALONE.value
    state = participation.state()
    if not participation.leadership.shared:
        return "leader" if state.works else "standby"
    return _shard_of(state)


def _shard_of(state: ShareState) -> str:
    if state.identity not in state.members:
        return Mode.SHARED.value
    members = sorted(state.members)
    text = f"shard {members.index(state.identity) + 1} of {len(members)}"
    text += f", {state.shares[state.identity]} shares"
    if state.draining:
        text += f", gives up {state.draining} for {state.draining_s:.0f} s"
    return text


def counted(mode: str, alone: int) -> str:
    """Return the mode of a daemon, with the number of daemons that run *alone* if it disturbs."""
    return f"{mode} \N{MULTIPLICATION SIGN}{alone}" if mode == Mode.ALONE and alone > 1 else mode
