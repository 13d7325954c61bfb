"""`natsctl recording`: fetches the recording of a sync from a daemon."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.names import NameArgument
from natsctl.cli.operate.find_daemon import (
    NamedOption,
    controller_with,
    find_daemons,
)
from natsctl.cli.output.terminal import write_notice, write_text
from natsctl.jetstream.options import NatsOptions
from natsctl.operate.names import parse_name

PRIVATE = 0o600  # of a file that may have secrets

app = App()


@app.add(
    "natsctl recording greetings/shop -o shop.json",
    "natsctl recording greetings shop --unmasked -o shop.json",
    notes="natsctl replay replays the file.",
)
@connected
async def recording(
    options: NatsOptions,
    *,
    object_: NameArgument,
    controller: NamedOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write; - is standard output, the default",
        ),
    ] = None,
    masked: Annotated[
        bool,
        typer.Option(
            "--masked/--unmasked",
            help="Mask secrets; --unmasked needs a separate permission in NATS",
        ),
    ] = True,
) -> None:
    """Fetch the recording of a sync.

    It is the last failed sync of the key, or the last sync if none failed. It has everything that
    the handler read, and every call of a store with its answer.
    """
    name = parse_name(object_)
    async with find_daemons(options) as daemons:
        chosen = await controller_with(daemons, name, controller)
        text = await daemons.recording(chosen, name.key, masked=masked)
    formatted = msgspec.json.format(text, indent=1) + b"\n"
    if output is None or str(output) == "-":
        write_text(formatted.decode())
        return
    output.touch(mode=PRIVATE)
    output.write_bytes(formatted)
    write_notice(f"recording of {name} written to {output}")
