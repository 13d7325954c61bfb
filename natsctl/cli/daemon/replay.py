"""`natsctl replay`: replays a recorded sync in memory."""

import pdb  # noqa: T100 - --pdb starts it
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.framework.command import App, interruptible
from natsctl.cli.framework.controller_options import CLASS_HELP, controller_option
from natsctl.cli.framework.controllers import load_runnable_controller
from natsctl.cli.framework.exit_codes import USAGE, report
from natsctl.cli.framework.options import with_options
from natsctl.cli.output.terminal import write_line
from natsctl.controller.hook import SCHEME
from natsctl.core.recording.document import Recording, read_recording
from natsctl.daemon.hook_requests import carry_requests
from natsctl.errors import UsageError
from natsctl.jetstream.options import NatsOptions
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
    "natsctl replay shop.json --hook shops.v2",
)
@with_options("nats", "nats", value=lambda effective: effective.nats)
def replay(
    *,
    nats: NatsOptions,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File that natsctl recording has written")
    ],
    controller: Annotated[str | None, controller_option(f"{CLASS_HELP}; not for hooks")] = None,
    hook: Annotated[
        str | None,
        typer.Option(
            metavar="SUBJECT",
            help="Ask the service at this subject, in place of the recorded answers of a hook",
        ),
    ] = None,
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
        path = controller or _recorded_path(recorded)
        if hook is not None:
            path = f"hook:{hook}?name={recorded.controller}&{path.partition('?')[2]}"
        kind = type(load_runnable_controller(path))
        if hook is not None:
            carry_requests(kind, nats)
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
    status = STATUS[replayed.verdict]
    if status:
        raise typer.Exit(status)


def _recorded_path(recorded: Recording) -> str:
    """Return the path of a hook's controller, which is all options."""
    path = str(recorded.settings.get("path", ""))
    if not path:
        raise UsageError(
            f"the recording is of the class {recorded.controller}: give --controller M:C"
        )
    return path
