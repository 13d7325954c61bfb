"""Opens the buckets that a command writes: for real, or to show the changes (`--dry-run`)."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
import typer
from msgspec import UNSET, UnsetType

from natsctl.cli.documents.values import outcome
from natsctl.cli.framework.controller_options import controller_option
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.output.differences import write_differences
from natsctl.cli.output.printing import TextOutput, write_json
from natsctl.cli.output.terminal import write_line
from natsctl.core.compare_and_set import Rewritten
from natsctl.core.planning.planning_stores import Planned, planned
from natsctl.daemon.published import published_schemas
from natsctl.errors import StoreError, StoreMissingError, UsageError
from natsctl.jetstream.connection import Connection
from natsctl.jetstream.store import BucketStore
from natsctl.jetstream.stores import connect
from natsctl.model.kinds import KvKind
from natsctl.model.plans.plan import Action, Plan
from natsctl.model.schemas.kind_schema import PublishedKind
from natsctl.model.store import Store
from natsctl.model.write_guard import DRY_RUN
from natsctl.operate.buckets import existing_bucket

if TYPE_CHECKING:
    from natsctl.daemon.plan import MadePlan

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the change, and store nothing")]
ThenPlanOption = Annotated[
    str | None,
    controller_option("With --dry-run, also plan what this controller would do then"),
]


ChangeOutputOption = Annotated[
    TextOutput,
    typer.Option("--output", "-o", help="Format of the change that --dry-run shows"),
]


class WriteTarget(msgspec.Struct, frozen=True):
    """The buckets of one command, whose writes are stored."""

    connection: Connection
    note: ClassVar[str] = ""
    """The end of a result: whether it is one of a dry run."""

    def outcome(self, rewritten: Rewritten) -> str:
        """Return the result of a write as a phrase."""
        return outcome(rewritten)

    async def store(
        self, bucket: str, value_type: type = bytes, *, create: bool | None = None
    ) -> Store:
        """Return the store of a bucket; raises `StoreMissingError` unless *create*."""
        opened = await existing_bucket(self.connection, bucket, create=create)
        return BucketStore(opened, value_type)

    def report(self, bucket: str, key: str, result: str) -> None:
        """Report the result of a write, and the change if it is not stored."""
        write_line(f"{bucket}/{key} {result}")


class _Shown(WriteTarget, frozen=True):
    """Buckets whose writes are only shown."""

    plan: Planned
    output: TextOutput
    note: ClassVar[str] = " (dry run)"

    def outcome(self, rewritten: Rewritten) -> str:
        """See `WriteTarget.outcome`."""
        if rewritten.base is None:
            return super().outcome(rewritten)
        return f"{'configured' if rewritten.base else 'created'}{self.note}"

    async def store(
        self, bucket: str, value_type: type = bytes, *, create: bool | None = None
    ) -> Store:
        """See `WriteTarget.store`."""
        creates = None if create is None else False  # a dry run creates no bucket
        try:
            opened = await existing_bucket(self.connection, bucket, create=creates)
        except StoreMissingError:
            if not create:
                raise
            return self.plan.nats.over(await self._kind(bucket, value_type), None)
        kind = await self._kind(opened.name, value_type)
        return self.plan.nats.over(kind, BucketStore(opened, value_type, guard=DRY_RUN))

    async def _kind(self, bucket: str, value_type: type) -> KvKind[object]:
        """Return the kind that the bucket's published schema names, if there is exactly one."""
        try:
            schemas = await published_schemas(self.connection, bucket)
        except StoreError:  # validation has reported it
            schemas = []
        if len(schemas) == 1:
            return PublishedKind(schemas[0], value_type)
        return KvKind(value_type, bucket=bucket)

    @property
    def actions(self) -> tuple[Action, ...]:
        return self.plan.record.key_plan("").actions

    def report(self, bucket: str, key: str, result: str) -> None:
        """See `WriteTarget.report`; in JSON, the end of the command writes all changes."""
        if self.output == "json":
            return
        super().report(bucket, key, result)
        for action in self.actions:
            if (_bucket(action), action.key) == (bucket, key):
                write_differences(action.diff, indent="  ")


class _Change(msgspec.Struct, frozen=True):
    """The result of a dry run in JSON: the changes of the command, and the plan that follows."""

    actions: tuple[Action, ...]
    plan: Plan | UnsetType = UNSET


def _bucket(action: Action) -> str:
    return action.kind.rpartition(".")[2]


class DryRun(msgspec.Struct, frozen=True):
    """The treatment of the writes of a command: they are stored, or only shown.

    With a controller, it also shows what the controller would do then.
    """

    shown: bool
    controller: str | None
    stores: StoreOptions
    output: TextOutput = "text"

    def __post_init__(self) -> None:
        """Raise `UsageError` for a controller or a format without a dry run."""
        if self.output != "text" and not self.shown:
            raise UsageError("--output is the format of a dry run: it needs --dry-run")
        if self.controller is not None and not self.shown:
            raise UsageError("--controller shows what follows a change: it needs --dry-run")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[WriteTarget]:
        """Connect to NATS, and yield the buckets; the end of the context shows the plan."""
        async with connect(self.stores.nats) as nats:
            if not self.shown:
                yield WriteTarget(nats.connection)
                return
            target = _Shown(
                nats.connection, planned(nats=nats, kube=None, key_of=lambda: ""), self.output
            )
            yield target
            made_plan = None
            if self.controller is not None:
                made_plan = await self._plan(self.controller, target)
            if self.output == "json":
                write_json(_Change(target.actions, UNSET if made_plan is None else made_plan.plan))
            if made_plan is not None:
                self._show_plan(made_plan)

    async def _plan(self, path: str, target: _Shown) -> "MadePlan":
        """Return what the controller would do after the changes of the command."""
        # a command without a plan does not need the controller runtime
        from natsctl.cli.framework.controllers import load_controller  # noqa: PLC0415
        from natsctl.controller.slots.declare import only_primary  # noqa: PLC0415
        from natsctl.core.sync import current_key  # noqa: PLC0415
        from natsctl.daemon.cluster import cluster_for  # noqa: PLC0415
        from natsctl.daemon.plan import make_plan  # noqa: PLC0415

        controller = load_controller(path)
        primary = only_primary(type(controller)).kind
        changed = target.actions
        bucket = primary.bucket if isinstance(primary, KvKind) else ""
        keys = {action.key for action in changed if _bucket(action) == bucket}
        logging.getLogger("natsctl").setLevel(logging.CRITICAL)
        async with cluster_for([controller], self.stores.cluster) as kube:
            return await make_plan(
                controller,
                stores=target.plan.of_another(current_key, cluster=kube),
                keys=keys if len(keys) == len(changed) else (),
                owner_names=self.stores.owner_names,
            )

    def _show_plan(self, made_plan: "MadePlan") -> None:
        from natsctl.cli.output.plans import exit_with_plan, write_plan  # noqa: PLC0415

        if self.output == "text":
            write_plan(made_plan, "tree")
        exit_with_plan(made_plan.plan, exit_code=False)
