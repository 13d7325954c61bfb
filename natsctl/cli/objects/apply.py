"""`natsctl apply`: what files say."""

from typing import Annotated

import typer

from natsctl.cli.documents.manifests import Manifest, read_manifests
from natsctl.cli.documents.values import applied, dropped, outcome, say_dropped
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.exit_codes import say_error, status
from natsctl.cli.objects.buckets import CreateOption, existing
from natsctl.cli.output.printing import line
from natsctl.core.objects.compare_and_set import Rewritten, rewrite
from natsctl.errors import ConflictError, InvalidObjectError, TooLargeError, UsageError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.store import Stored

_ITS_OWN = (UsageError, ConflictError, InvalidObjectError, TooLargeError)  # of one document alone

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl apply -f shop.yaml",
        "natsctl apply -f manifests/ -f extra.json --create-bucket",
        "natsctl list greetings -o yaml | sed s/hi/hello/ | natsctl apply -f -",
    )
    + "\n\n\b\nA document:\n  bucket: greetings\n  key: shop\n  spec:\n    text: hi",
)
@connected
async def apply(
    options: NatsOptions,
    *,
    file: Annotated[
        list[str],
        typer.Option(
            "--file", "-f", help="a file, a folder, or - for standard input", metavar="FILE"
        ),
    ],
    create_bucket: CreateOption = False,
) -> None:
    """Store what files say.

    Each document names a bucket and a key. The fields that it has are set, a spec as a whole;
    others stay, and labels and annotations are added to those there are. Nothing is stored where
    that changes nothing, or where any document is wrong.
    """
    manifests = read_manifests(file)
    async with connect(options) as connection:
        names = dict.fromkeys(manifest.bucket for manifest in manifests)
        buckets = {name: await existing(connection, name, create=create_bucket) for name in names}
        failures = [await _apply(buckets[manifest.bucket], manifest) for manifest in manifests]
    worst = next((code for code in failures if code), 0)
    if worst:
        raise typer.Exit(worst)


async def _apply(bucket: Bucket, manifest: Manifest) -> int:
    """Store one document; return the exit status that it asks for."""
    name = f"{manifest.bucket}/{manifest.key}"
    lost: list[str] = []

    def change(current: Stored | None) -> bytes:
        lost[:] = dropped(current, manifest.given)
        return applied(current, manifest.given)

    try:
        done: Rewritten = await rewrite(BucketStore(bucket), manifest.key, change)
    except _ITS_OWN as error:
        say_error(f"{name}: {error}")
        return status(error)
    line(f"{name} {outcome(done)}")
    say_dropped(name, lost)
    return 0
