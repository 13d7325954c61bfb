"""`natsctl backup`: a whole bucket, in a file."""

from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.objects.archives import written
from natsctl.cli.objects.buckets import BucketArgument, bucket_of
from natsctl.cli.output.terminal import Progress, say
from natsctl.jetstream.bucket.backup import back_up
from natsctl.jetstream.connection.options import NatsOptions

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl backup greetings -o greetings.backup",
        "natsctl backup greetings -o greetings.backup.gz",
        "natsctl backup greetings -o - | ssh hub natsctl restore -",
    ),
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
            help="where to write it: compressed if it ends with .gz; - is standard output",
        ),
    ],
) -> None:
    """Write a whole bucket to a file.

    The file has the bucket's options and the newest value of every key, byte for byte: metadata,
    uid, finalizers, status and fields that natsctl does not know. It appears when it is complete,
    and only its owner can read it. Older revisions and deleted keys are not in it.
    """
    async with bucket_of(options, bucket) as found:
        total = (await found.state()).subjects
        with written(output) as file, Progress("backing up", total) as progress:
            made = await back_up(found, file, progress.step)
    if made.illegal:
        say(f"skipped, as they are no legal keys: {', '.join(made.illegal)}")
    say(f"{bucket}: {made.keys} keys written to {'standard output' if output == '-' else output}")
