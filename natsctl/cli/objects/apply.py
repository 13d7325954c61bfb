"""`natsctl apply`: sets the fields of objects that files describe."""

from typing import Annotated

import typer

from natsctl.cli.documents import values
from natsctl.cli.documents.manifests import KeyDocument, read_documents
from natsctl.cli.framework.command import App, connected
from natsctl.cli.framework.exit_codes import exit_status, exit_with, report_error
from natsctl.cli.objects.buckets import CreateOption, existing_bucket
from natsctl.cli.output.terminal import write_line
from natsctl.core.objects.compare_and_set import rewrite
from natsctl.errors import ConflictError, InvalidObjectError, TooLargeError, UsageError
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.bucket.bucket import Bucket
from natsctl.jetstream.connection.connection import connect
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.store import Stored

_DOCUMENT_ERRORS = (UsageError, ConflictError, InvalidObjectError, TooLargeError)

app = App()


@app.add(
    "natsctl apply -f shop.yaml",
    "natsctl apply -f manifests/ -f extra.json --create-bucket",
    "natsctl list greetings -o yaml | sed s/hi/hello/ | natsctl apply -f -",
    notes="A document:\n  bucket: greetings\n  key: shop\n  spec:\n    text: hi",
)
@connected
async def apply(
    options: NatsOptions,
    *,
    file: Annotated[
        list[str],
        typer.Option(
            "--file",
            "-f",
            help="YAML or JSON file, folder, or - for standard input; repeatable",
            metavar="FILE",
        ),
    ],
    create_bucket: CreateOption = False,
) -> None:
    """Apply objects from files.

    Each document names a bucket and a key. Each field of the document, such as the spec, replaces
    the whole field of the object. Other fields stay, and labels and annotations are merged. An
    object that would not change is not written. If any document is invalid, nothing is written.
    """
    documents = read_documents(file)
    async with connect(options) as connection:
        names = dict.fromkeys(document.bucket for document in documents)
        buckets = {
            name: await existing_bucket(connection, name, create=create_bucket) for name in names
        }
        statuses = [await _apply(buckets[document.bucket], document) for document in documents]
    exit_with(statuses)


async def _apply(bucket: Bucket, document: KeyDocument) -> int:
    """Apply one document, and return its exit status."""
    name = f"{document.bucket}/{document.key}"
    ignored: list[str] = []

    def change(current: Stored | None) -> bytes:
        ignored[:] = values.ignored_fields(current, document.new)
        return values.apply(current, document.new)

    try:
        rewritten = await rewrite(BucketStore(bucket), document.key, change)
    except _DOCUMENT_ERRORS as error:
        report_error(f"{name}: {error}")
        return exit_status(error)
    write_line(f"{name} {values.outcome(rewritten)}")
    values.write_ignored_notice(name, ignored)
    return 0
