"""`natsctl migrate`: rewrites the objects of a controller in the newest form of their types."""

from collections import Counter

from natsctl.cli.command import (
    FAILED,
    App,
    ControllerClass,
    exit_with,
    load_runnable_controller,
    report_error,
)
from natsctl.cli.terminal import progress_bar, write_line, write_notice
from natsctl.controller.controller import Controller
from natsctl.core.migration import Migrated, MigrationStep, migrate, objects_of, outdated, planned
from natsctl.daemon.kinds import kinds_of
from natsctl.errors import StoreMissingError
from natsctl.jetstream.connection import Connection, connect
from natsctl.jetstream.options import NatsOptions
from natsctl.jetstream.store import KvStore
from natsctl.model.kinds import KvKind
from natsctl.operate.buckets import existing_bucket

app = App()


@app.add(
    "natsctl migrate --controller fleet.shops:Shops --dry-run",
    "natsctl migrate --controller fleet.shops:Shops",
    called="migrate",
    dry_run="Show the objects that would be rewritten",
)
async def migrate_(
    options: NatsOptions, *, controller: ControllerClass, dry_run: bool = False
) -> None:
    """Rewrite objects in the newest form of their types.

    The kinds are those that the controller declares with older types, apart from tertiaries. Each
    object is written by compare-and-set, so the command can run beside daemons and beside people
    who edit. It can be stopped: the next run continues. Finalizers, uid, generation and status
    stay. An invalid object, or one of a newer version, stays as it is.

    The command exits with status 1 if an object could not be rewritten.
    """
    loaded = load_runnable_controller(controller)
    written = (
        used.kind
        for used in kinds_of(loaded)
        if used.role != "tertiary" or not isinstance(loaded, Controller)
    )
    kinds = {
        (kind.bucket, kind.keys): kind
        for kind in written
        if isinstance(kind, KvKind) and kind.version > 1
    }
    if not kinds:
        write_notice(f"{controller} declares no kind with older types: nothing is to be migrated")
        return
    async with connect(options) as connection:
        exit_with([await _migrate(connection, kind, dry_run=dry_run) for kind in kinds.values()])


async def _migrate(connection: Connection, kind: KvKind[object], *, dry_run: bool) -> int:
    try:
        store = KvStore(await existing_bucket(connection, kind.bucket), kind)
    except StoreMissingError as error:
        write_notice(str(error))
        return 0
    objects = await objects_of(store)
    older = outdated(store, objects)
    counts = Counter({Migrated.UNCHANGED: len(objects) - len(older)})

    def record(step: MigrationStep) -> None:
        counts[step.result] += 1
        name = f"{kind.bucket}/{step.key}"
        match step.result:
            case Migrated.FAILED:
                report_error(f"{name}: {step.reason}")
            case Migrated.NEWER:
                write_notice(f"{name} stays as it is: {step.reason}")
            case Migrated.DONE if dry_run:
                write_line(f"{name} would be migrated from version {step.before} to {kind.version}")

    done = len(older) if dry_run else 0
    try:
        if dry_run:
            for step in planned(store, older):
                record(step)
        else:
            with progress_bar(f"migrating {kind.bucket}", len(older)) as progress:
                async for step in migrate(store, older):
                    record(step)
                    progress(advance=1)
                    done += 1
    finally:
        if done < len(older):
            write_notice(
                f"{kind.bucket}: stopped after {done} of {len(older)} objects; run the command "
                "again to continue"
            )
    would = " would be" if dry_run else ""
    parts = [f"{counts[Migrated.DONE]}{would} migrated to version {kind.version}"]
    parts += [
        f"{counts[result]} {result}"
        for result in Migrated
        if result is not Migrated.DONE and counts[result]
    ]
    write_line(f"{kind.bucket}: {', '.join(parts)}")
    return FAILED if counts[Migrated.FAILED] else 0
