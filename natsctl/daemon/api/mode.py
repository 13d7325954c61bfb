"""Names the mode in which a daemon runs a controller: alone, elected, or sharing its keys."""

from enum import StrEnum

from natsctl.core.coordination.election import Election
from natsctl.core.coordination.sharding import Shard


class Mode(StrEnum):
    """The way in which a daemon runs its controllers."""

    ALONE = "alone"
    ELECTED = "leader-elect"
    SHARED = "shard"
    UNKNOWN = ""

    @property
    def option(self) -> str:
        """The mode in terms of the command line."""
        return "without --leader-elect or --shard" if self is Mode.ALONE else f"with --{self}"


def way_of(election: Election | None, shard: Shard | None) -> Mode:
    """Return the mode that was chosen."""
    if election is not None:
        return Mode.ELECTED
    return Mode.ALONE if shard is None else Mode.SHARED


def mode_of(election: Election | None, shard: Shard | None) -> str:
    """Return the mode with the part that this daemon has now, as `natsctl status` shows it."""
    if election is not None:
        return "leader" if election.state().leads else "standby"
    if shard is None:
        return Mode.ALONE.value
    state = shard.state()
    if state.identity not in state.members:
        return Mode.SHARED.value
    members = sorted(state.members)
    return f"shard {members.index(state.identity) + 1} of {len(members)}"


def trouble_of(election: Election | None, shard: Shard | None) -> str:
    """Return why this daemon does not take part, empty if nothing is wrong."""
    part = election or shard
    return "" if part is None else part.state().trouble
