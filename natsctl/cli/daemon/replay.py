"""`natsctl replay`: replays a recorded sync in memory."""

import pdb  # noqa: T100 - --pdb starts it
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, interruptible
from natsctl.cli.framework.controller_options import ControllerOption
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.exit_codes import USAGE, report
from natsctl.cli.output.terminal import write_line
from natsctl.core.recording.document import read_recording
from natsctl.testing.replaying.outcome import Verdict
from natsctl.testing.replaying.replay import replay_recording

STATUS = {
    Verdict.SUCCEEDED: 0,
    Verdict.AS_RECORDED: 1,
    Verdict.NOT_RECORDED: 3,
    Verdict.OTHERWISE: 4,
}

app = App()


@app.add(
    "natsctl replay shop.json -c controllers.greetings:Greetings",
    "natsctl replay shop.json -c controllers.greetings:Greetings --pdb",
)
def replay(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File that natsctl recording has written")
    ],
    controller: ControllerOption,
    debugger: Annotated[
        bool, typer.Option("--pdb", help="Start the debugger where the handler fails")
    ] = False,
) -> None:
    """Replay a recorded sync in memory.

    The handler reads what the recorded sync has read, and nothing else. Its clock shows the time of
    the recorded sync. Its writes stay in memory. Changes of files, connections, processes and
    signals are refused.

    Exit codes: 0 if the sync succeeds now, 1 if it fails as recorded, 2 if it can't be replayed, 3
    if a read was not recorded, 4 if the sync fails in another way.
    """
    try:
        recorded = read_recording(file)
        kind = type(load_runnable_controller(controller))
        with interruptible():
            replayed = replay_recording(recorded, kind)
    except Exception as error:
        report(error)
        raise typer.Exit(USAGE) from error
    for line in str(replayed).splitlines():
        write_line(line)
    if replayed.error is not None:
        write_line("traceback")
        for line in replayed.replayed.traceback.splitlines():
            write_line(line)
    if debugger and replayed.traceback is not None:
        pdb.post_mortem(replayed.traceback)
    status = STATUS[replayed.verdict]
    if status:
        raise typer.Exit(status)
