"""Opens the buckets that a command writes: for real, or to show the changes (`--dry-run`)."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Protocol

import msgspec
import typer

from natsctl.cli.documents.values import outcome
from natsctl.cli.objects.buckets import existing_bucket
from natsctl.cli.output.differences import write_differences
from natsctl.controller.slots.owners import OwnerNames
from natsctl.core.objects.compare_and_set import Rewritten
from natsctl.core.planning.planned import Planned, planned
from natsctl.errors import StoreMissingError, UsageError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.connection.connection import Connection
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.jetstream.stores import Nats, connect
from natsctl.kubernetes.access.options import KubeOptions
from natsctl.model.kinds import KvKind
from natsctl.model.plans.plan import Action
from natsctl.model.store import Store
from natsctl.model.write_guard import DRY_RUN

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the change, and store nothing")]
ThenPlanOption = Annotated[
    str | None,
    typer.Option(
        "--controller",
        "-c",
        metavar="M:C",
        help="With --dry-run, also plan what this controller would do then",
    ),
]


class Target(Protocol):
    """The buckets of one command."""

    @property
    def connection(self) -> Connection:
        """The connection to NATS."""
        ...

    @property
    def note(self) -> str:
        """The end of a line about a write: whether it was a dry run."""
        ...

    def outcome(self, rewritten: Rewritten) -> str:
        """Return the result of a write as a phrase."""
        ...

    async def store(self, bucket: str, value_type: type = bytes, *, create: bool = False) -> Store:
        """Return the store of a bucket; raises `StoreMissingError` unless *create*."""
        ...

    def show(self, bucket: str, key: str) -> None:
        """Show the change of a key, if it is not stored."""
        ...


class _Stored(msgspec.Struct, frozen=True):
    """Buckets whose writes are stored."""

    connection: Connection
    note: str = ""

    async def store(self, bucket: str, value_type: type = bytes, *, create: bool = False) -> Store:
        opened = await existing_bucket(self.connection, bucket, create=create)
        return BucketStore(opened, value_type)

    def outcome(self, rewritten: Rewritten) -> str:
        """See `Target.outcome`."""
        return outcome(rewritten)

    def show(self, bucket: str, key: str) -> None:
        """See `Target.show`."""


class _Shown(msgspec.Struct, frozen=True):
    """Buckets whose writes are only shown."""

    nats: Nats
    plan: Planned
    note: str = " (dry run)"

    @property
    def connection(self) -> Connection:
        return self.nats.connection

    def outcome(self, rewritten: Rewritten) -> str:
        """See `Target.outcome`."""
        if rewritten.base is None:
            return outcome(rewritten)
        return f"{'configured' if rewritten.base else 'created'}{self.note}"

    async def store(self, bucket: str, value_type: type = bytes, *, create: bool = False) -> Store:
        kind: KvKind[object] = KvKind(value_type, bucket=bucket)
        try:
            opened = await existing_bucket(self.connection, bucket)
        except StoreMissingError:
            if not create:
                raise
            return self.plan.nats.over(kind, None)
        return self.plan.nats.over(kind, BucketStore(opened, value_type, guard=DRY_RUN))

    def show(self, bucket: str, key: str) -> None:
        for action in self.plan.record.key_plan("").actions:
            if (_bucket(action), action.key) == (bucket, key):
                write_differences(action.diff, indent="  ")


def _bucket(action: Action) -> str:
    return action.kind.rpartition(".")[2]


class DryRun(msgspec.Struct, frozen=True):
    """The treatment of the writes of a command: they are stored, or only shown.

    With a controller, it also shows what the controller would do then.
    """

    shown: bool
    controller: str | None
    cluster: KubeOptions | None
    owner_names: OwnerNames

    def __post_init__(self) -> None:
        """Raise `UsageError` for a controller without a dry run."""
        if self.controller is not None and not self.shown:
            raise UsageError("--controller shows what follows a change: it needs --dry-run")

    @asynccontextmanager
    async def writing(self, options: NatsOptions) -> AsyncIterator[Target]:
        """Connect to NATS, and yield the buckets; the end of the context shows the plan."""
        async with connect(options) as nats:
            if not self.shown:
                yield _Stored(nats.connection)
                return
            target = _Shown(nats, planned(nats=nats, kube=None, key_of=lambda: ""))
            yield target
            if self.controller is not None:
                await self._show_plan(self.controller, target)

    async def _show_plan(self, path: str, target: _Shown) -> None:
        """Show what the controller would do after the changes of the command."""
        # a command without a plan does not need the controller runtime
        from natsctl.cli.framework.controllers import load_controller  # noqa: PLC0415
        from natsctl.cli.output.plans import PlanOutput, exit_with_plan, write_plan  # noqa: PLC0415
        from natsctl.controller.slots.declare import only_primary  # noqa: PLC0415
        from natsctl.core.sync.calls import current_key  # noqa: PLC0415
        from natsctl.daemon.cluster import cluster_for  # noqa: PLC0415
        from natsctl.daemon.plan import make_plan  # noqa: PLC0415

        controller = load_controller(path)
        primary = only_primary(type(controller)).kind
        changed = target.plan.record.key_plan("").actions
        bucket = primary.bucket if isinstance(primary, KvKind) else ""
        keys = {action.key for action in changed if _bucket(action) == bucket}
        logging.getLogger("natsctl").setLevel(logging.CRITICAL)
        async with cluster_for([controller], self.cluster) as kube:
            made = await make_plan(
                controller,
                stores=target.plan.of_another(current_key, cluster=kube),
                keys=keys if len(keys) == len(changed) else (),
                owner_names=self.owner_names,
            )
        write_plan(made, PlanOutput.TREE)
        exit_with_plan(made.plan, exit_code=False)
