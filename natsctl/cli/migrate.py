"""`natsctl migrate`: rewrites the objects of a controller in the newest form of their types."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from natsctl.cli.arguments import ControllerOption, load_runnable_controller
from natsctl.cli.command import FAILED, App, connected, exit_with, report_error
from natsctl.cli.terminal import progress_bar, write_line, write_notice
from natsctl.controller.controller import Controller
from natsctl.core.migration import Migrated, MigrationStep, migrate, objects_of, outdated, planned
from natsctl.daemon.kinds import kinds_of
from natsctl.daemon.operator import Guest
from natsctl.errors import StoreMissingError
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import KvStore
from natsctl.model.kinds import KvKind
from natsctl.model.store import Stored
from natsctl.operate.buckets import existing_bucket

app = App()


@app.add(
    "natsctl migrate --controller fleet.shops:Shops --dry-run",
    "natsctl migrate --controller fleet.shops:Shops",
    name="migrate",
)
@connected
async def migrate_(
    options: NatsOptions,
    *,
    controller: ControllerOption,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the objects that would be rewritten")
    ] = False,
) -> None:
    """Rewrite objects in the newest form of their types.

    The kinds are those that the controller declares with older types, apart from tertiaries. Each
    object is written by compare-and-set, so the command can run beside daemons and beside people
    who edit. It can be stopped: the next run continues. Finalizers, uid, generation and status
    stay. An invalid object, or one of a newer version, stays as it is.

    The command exits with status 1 if an object could not be rewritten.
    """
    kinds = _kinds(load_runnable_controller(controller))
    if not kinds:
        write_notice(f"{controller} declares no kind with older types: nothing is to be migrated")
        return
    async with connect(options) as connection:
        exit_with([await _migrate(connection, kind, dry_run=dry_run) for kind in kinds])


def _kinds(controller: Controller | Guest) -> list[KvKind[object]]:
    """Return the kinds with versions that the controller writes, each part of a bucket once."""
    kinds = [
        used.kind
        for used in kinds_of(controller)
        if used.role != "tertiary" or not isinstance(controller, Controller)
    ]
    versioned = (kind for kind in kinds if isinstance(kind, KvKind) and kind.version > 1)
    return list({(kind.bucket, kind.keys): kind for kind in versioned}.values())


async def _migrate(connection: Connection, kind: KvKind[object], *, dry_run: bool) -> int:
    """Migrate the objects of a kind, and return the exit status."""
    try:
        store = KvStore(await existing_bucket(connection, kind.bucket), kind)
    except StoreMissingError as error:
        write_notice(str(error))
        return 0
    objects = await objects_of(store)
    older = outdated(store, objects)
    counts = Counter({Migrated.UNCHANGED: len(objects) - len(older)})
    if dry_run:
        for step in planned(store, older):
            counts[step.result] += 1
            _write_step(kind, step, dry_run=True)
    else:
        await _run(store, kind, older, counts)
    write_line(_summary(kind, counts, dry_run=dry_run))
    return FAILED if counts[Migrated.FAILED] else 0


async def _run(
    store: KvStore, kind: KvKind[object], older: Sequence[Stored], counts: Counter[Migrated]
) -> None:
    """Migrate the objects with a progress bar; a notice follows if the command is stopped."""
    done = 0
    try:
        with progress_bar(f"migrating {kind.bucket}", len(older)) as progress:
            async for step in migrate(store, older):
                counts[step.result] += 1
                _write_step(kind, step, dry_run=False)
                progress(advance=1)
                done += 1
    finally:
        if done < len(older):
            write_notice(
                f"{kind.bucket}: stopped after {done} of {len(older)} objects; run the command "
                "again to continue"
            )


def _write_step(kind: KvKind[object], step: MigrationStep, *, dry_run: bool) -> None:
    name = f"{kind.bucket}/{step.key}"
    match step.result:
        case Migrated.FAILED:
            report_error(f"{name}: {step.reason}")
        case Migrated.NEWER:
            write_notice(f"{name} stays as it is: {step.reason}")
        case Migrated.DONE if dry_run:
            write_line(f"{name} would be migrated from version {step.before} to {kind.version}")


def _summary(kind: KvKind[object], counts: Counter[Migrated], *, dry_run: bool) -> str:
    """Return the numbers of objects by result, such as `shops: 3 migrated to version 2`."""
    would = " would be" if dry_run else ""
    parts = [f"{counts[Migrated.DONE]}{would} migrated to version {kind.version}"]
    parts += [
        f"{counts[result]} {result}"
        for result in Migrated
        if result is not Migrated.DONE and counts[result]
    ]
    return f"{kind.bucket}: {', '.join(parts)}"
