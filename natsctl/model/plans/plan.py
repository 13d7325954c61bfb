"""The plan of a controller: the writes that its syncs would make, by key."""

from collections.abc import Collection, Iterable
from typing import Literal, Self

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from natsctl.model.garbage import GarbagePlan
from natsctl.model.plans.differences import Difference

ActionType = Literal["create", "update", "delete", "status", "external"]


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One write that a sync would make.

    Attributes:
        action: `create`, `update` or `delete` an object, change only its `status`, or change an
            `external` resource.
        diff: the fields that would change; secrets are masked.
        reason: why a secondary would be deleted, if its owner doesn't exist.
        call: the external call: `create`, `update` or `delete`; `adopt` takes over a resource that
            natsctl didn't create, without a call.
        differs: what differs at an external resource, in the words of the client that observed it.
    """

    action: ActionType
    kind: str
    key: str
    diff: tuple[Difference, ...] = ()
    reason: str | UnsetType = UNSET
    call: Literal["create", "update", "delete", "adopt"] | UnsetType = UNSET
    differs: str | UnsetType = UNSET

    @property
    def effect(self) -> Literal["create", "update", "delete"]:
        """The effect on the object or the external resource."""
        match self.action:
            case "status":
                return "update"
            case "external":
                return "update" if self.call is UNSET or self.call == "adopt" else self.call
            case effect:
                return effect


class KeyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of the syncs of one key.

    Attributes:
        error: why the sync fails; empty if it succeeds.
        held_back: why the key isn't synced, if it's paused or quarantined.
        after_s: seconds until the next sync that the handler requests; None if it requests none.
        failed_before: true if the key failed before the plan too, by the records of its controller.
    """

    error: str = ""
    after_s: float | None = None
    actions: tuple[Action, ...] = ()
    held_back: str | UnsetType = UNSET
    failed_before: bool | UnsetType = UNSET


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The number of objects that change, and of keys that fail, change nothing, or are paused."""

    create: int = 0
    update: int = 0
    delete: int = 0
    failed: int = 0
    unchanged: int = 0
    held_back: int | UnsetType = UNSET  # keys, if any
    failed_before: int | UnsetType = UNSET  # failed keys that failed before too, if any

    @classmethod
    def of(cls, keys: Iterable[KeyPlan], *, unchanged: int) -> "PlanSummary":
        """Count the actions of the keys."""
        counts = {"create": 0, "update": 0, "delete": 0}
        failed = held_back = 0
        for key in keys:
            failed += bool(key.error)
            held_back += bool(key.held_back)
            effects = {(action.kind, action.key, action.effect) for action in key.actions}
            for _, _, effect in effects:
                counts[effect] += 1
        return cls(**counts, failed=failed, unchanged=unchanged, held_back=held_back or UNSET)

    @property
    def changes(self) -> bool:
        """True if anything would change."""
        return bool(self.create or self.update or self.delete)

    @property
    def newly_failed(self) -> int:
        """The number of keys that fail, and did not fail before."""
        return self.failed - (self.failed_before or 0)

    def __str__(self) -> str:
        held_back = f", {self.held_back} held back" if self.held_back else ""
        before = f" ({self.failed_before} as before)" if self.failed_before else ""
        return (
            f"Plan: {self.create} to create, {self.update} to change, {self.delete} to delete, "
            f"{self.failed} failed{before}, {self.unchanged} unchanged{held_back}"
        )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The effects that a controller would have now.

    Attributes:
        summary: the counts.
        keys: the keys that change anything, fail, are held back, or ask to be synced again.
        garbage: the orphans that garbage collection would keep, with the reasons.
        missing: the requested keys that don't exist and change nothing, if any.
    """

    controller: str
    summary: PlanSummary
    keys: dict[str, KeyPlan]
    garbage: GarbagePlan | UnsetType = UNSET
    missing: tuple[str, ...] | UnsetType = UNSET

    def compared(self, failing: Collection[str]) -> Self:
        """Return the plan with the keys marked that failed before, beside those marked already."""
        keys = {
            key: replace(plan, failed_before=True) if plan.error and key in failing else plan
            for key, plan in self.keys.items()
        }
        count = sum(bool(plan.error and plan.failed_before) for plan in keys.values())
        return replace(self, keys=keys, summary=replace(self.summary, failed_before=count or UNSET))
