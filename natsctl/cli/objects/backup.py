"""`natsctl backup`: writes a bucket to a file."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import App, connected
from natsctl.cli.objects.archives import new_archive
from natsctl.cli.objects.buckets import BucketArgument, open_bucket
from natsctl.cli.output.terminal import progress_bar, write_notice
from natsctl.jetstream.backup.backup import back_up
from natsctl.jetstream.connection.options import NatsOptions

app = App()


@app.add(
    "natsctl backup greetings -o greetings.backup",
    "natsctl backup greetings -o greetings.backup.gz",
    "natsctl backup greetings -o - | ssh hub natsctl restore -",
)
@connected
async def backup(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write, compressed if its name ends with .gz; - is standard output",
        ),
    ],
) -> None:
    """Write a bucket to a file.

    The file contains the options of the bucket and the newest value of every key, byte for byte:
    metadata, uid, finalizers, status and fields that natsctl does not know. Older revisions and
    deleted keys are not in it. The file appears when it is complete, and only its owner can read
    it.
    """
    async with open_bucket(options, bucket) as source:
        total = (await source.state()).subjects
        with new_archive(output) as file, progress_bar("backing up", total) as progress:
            result = await back_up(source, file, progress.step)
    if result.illegal:
        write_notice(f"skipped, because the keys are not legal: {', '.join(result.illegal)}")
    target = "standard output" if output == "-" else output
    keys = "1 key" if result.keys == 1 else f"{result.keys} keys"
    write_notice(f"{bucket}: {keys} written to {target}")
