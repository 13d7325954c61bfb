"""Answers for the view of garbage: the plan of garbage collection of one controller."""

import msgspec

from natsctl.console.answers import Answer
from natsctl.daemon.api.verbs import Verb
from natsctl.errors import ConflictError, UsageError
from natsctl.model.garbage import Kept, Orphan
from natsctl.operate.fleet import Fleet


class Garbage(Answer, frozen=True, kw_only=True):
    """The orphans of a controller, and why they are held; see `GarbagePlan`."""

    controller: str
    orphans: tuple[Orphan, ...]
    refused: str
    more: int


class Choice(msgspec.Struct, frozen=True):
    """An object that a user chose to delete, as the page showed it."""

    kind: str
    key: str
    revision: int


class CollectedGarbage(msgspec.Struct, frozen=True):
    """The number of objects that were deleted, and the others with the reasons."""

    removed: int
    kept: list[Kept]


async def garbage(fleet: Fleet, name: str) -> Garbage:
    """Return the orphans of a controller, as the leader of the bucket confirms them now."""
    daemons = await fleet.offering(Verb.GC_PLAN, name)
    plan = await daemons.plan(name)
    return Garbage(
        controller=plan.controller, orphans=plan.orphans, refused=plan.refused, more=plan.more
    )


async def apply_garbage(
    fleet: Fleet, name: str, chosen: list[Choice], count: int
) -> CollectedGarbage:
    """Delete the chosen orphans, if each still has the revision that the user saw.

    *count* is the number that the user typed. Raises `UsageError` if it is another number than that
    of the chosen objects, and `ConflictError` if one of them is no orphan any more.
    """
    wanted = {(choice.kind, choice.key, choice.revision) for choice in chosen}
    if not wanted or count != len(wanted):
        raise UsageError(f"{len(wanted)} objects are chosen, and {count} was typed")
    daemons = await fleet.offering(Verb.GC_PLAN, name)
    plan = await daemons.plan(name)
    orphans = tuple(
        orphan for orphan in plan.orphans if (orphan.kind, orphan.key, orphan.revision) in wanted
    )
    if len(orphans) != len(wanted):
        changed = len(wanted) - len(orphans)
        raise ConflictError(
            f"nothing is deleted: {changed} of the chosen objects changed since they were shown"
        )
    removed = await daemons.apply(msgspec.structs.replace(plan, orphans=orphans))
    return CollectedGarbage(len(removed.orphans), list(removed.kept))
