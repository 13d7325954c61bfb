"""`natsctl replay`: fetches the recording of a sync, and replays it in memory."""

import os
import pdb  # noqa: T100 - --pdb starts it
import tempfile
from pathlib import Path

import msgspec
import typer

from natsctl.cli.command import (
    USAGE,
    App,
    complete,
    controller_name,
    exit_with,
    interruptible,
    load_runnable_controller,
    report,
    settings,
)
from natsctl.cli.terminal import write_line, write_notice, write_text
from natsctl.controller.hook import SCHEME
from natsctl.core.record.document import Recording, read_recording
from natsctl.daemon.hook_requests import carry_requests
from natsctl.errors import UsageError
from natsctl.operate.fleet import open_fleet
from natsctl.operate.objects import parse_name, parse_names
from natsctl.testing.replaying.replay import Verdict, replay_recording

app = App()

STATUS = {
    Verdict.SUCCEEDED: 0,
    Verdict.AS_RECORDED: 1,
    Verdict.NOT_RECORDED: 3,
    Verdict.OTHERWISE: 4,
}
PRIVATE = 0o600  # of a file that may have secrets


@app.add(
    "natsctl replay greetings/shop -c controllers.greetings:Greetings --pdb",
    "natsctl replay greetings/shop -o shop.json",
    "natsctl replay shop.json -c controllers.greetings:Greetings",
    "natsctl replay greetings/shop --record",
    words="@FILE or BUCKET/KEY | A recording; or the object whose recording is fetched",
    controller="-c M:C | Controller class; or its name, to fetch or record",
    hook="SUBJECT | Ask this service, not the recorded answers of a hook",
    debugger="--pdb | Start the debugger where the handler fails",
    output="-o FILE | Only fetch, into this file; - for the screen",
    masked="--masked/--unmasked | Mask secrets; --unmasked needs a permission",
    record="Record every sync of the objects from now on",
    stop="With --record, record only failed syncs again",
)
def replay(  # noqa: C901 - one straight line
    *,
    words: list[str] | None = None,
    controller: str | None = None,
    hook: str | None = None,
    debugger: bool = False,
    output: Path | None = None,
    masked: bool = True,
    record: bool = False,
    stop: bool = False,
) -> None:
    """Replay a recorded sync in memory: the last failed one of a key, or its last one.

    The handler reads what it read then, its writes stay in memory, and other side effects are
    refused. Exit codes: 0 it succeeds now, 1 it fails as recorded, 2 it can't be
    replayed, 3 a read was not recorded, 4 it fails in another way.
    """
    named, options = words or [], settings().nats
    if stop and not record:
        raise UsageError("--stop needs --record")
    if record:

        async def ask() -> None:
            names = parse_names(named) if named else []
            async with open_fleet(options) as fleet:
                for answer in await fleet.record(names, controller_name(controller), stop=stop):
                    recorded = ", ".join(answer.keys) or "only failed syncs"
                    write_line(f"{answer.daemon} records {recorded} of {answer.controller}")

        complete(ask())
        return
    if not named:
        raise UsageError("name a file with a recording, or an object: BUCKET/KEY")
    is_file = len(named) == 1 and ("/" not in named[0] or Path(named[0]).is_file())
    if is_file and output is None:
        _replay(Path(named[0]), controller, hook, debugger=debugger)
        return
    name = parse_name(named)

    async def fetch(target: Path) -> None:
        """Write the recording of the key to a file that only this user can read."""
        async with open_fleet(options) as fleet:
            text = await fleet.recording(name, controller_name(controller), masked=masked)
        formatted = msgspec.json.format(text, indent=1) + b"\n"
        if str(target) == "-":
            write_text(formatted.decode())
            return
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
        with os.fdopen(opened, "wb") as written:
            written.write(formatted)

    if output is not None:
        complete(fetch(output))
        if str(output) != "-":
            write_notice(f"recording of {name} written to {output}")
        return
    with tempfile.TemporaryDirectory(prefix="natsctl-replay-") as folder:
        complete(fetch(Path(folder) / "recording.json"))
        _replay(Path(folder) / "recording.json", controller, hook, debugger=debugger)


def _replay(file: Path, controller: str | None, hook: str | None, *, debugger: bool) -> None:
    try:
        recorded = read_recording(file)
        path = controller or _recorded_path(recorded)
        if hook is not None:
            path = f"hook:{hook}?name={recorded.controller}&{path.partition('?')[2]}"
        kind = type(load_runnable_controller(path))
        if hook is not None:
            carry_requests(kind, settings().nats)
        with interruptible():
            replayed = replay_recording(recorded, kind)
    except Exception as error:
        report(error)
        raise typer.Exit(USAGE) from error
    for line in str(replayed).splitlines():
        write_line(line)
    if replayed.error is not None and not path.startswith(SCHEME):  # no frame of a hook is here
        write_line("traceback")
        for line in replayed.replayed.traceback.splitlines():
            write_line(line)
    if debugger and replayed.traceback is not None:
        pdb.post_mortem(replayed.traceback)
    exit_with([STATUS[replayed.verdict]])


def _recorded_path(recorded: Recording) -> str:
    """Return the path of a hook's controller, which is all options."""
    path = str(recorded.settings.get("path", ""))
    if not path:
        raise UsageError(
            f"the recording is of the class {recorded.controller}: give --controller M:C"
        )
    return path
