"""`natsctl apply`: sets the fields of objects that files describe."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from natsctl.cli.documents import values
from natsctl.cli.documents.manifests import KeyDocument, read_documents
from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.exit_codes import exit_status, exit_with, report_error
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.objects.buckets import CreateOption
from natsctl.cli.objects.writing import (
    ChangeOutputOption,
    DryRun,
    DryRunOption,
    ThenPlanOption,
    WriteTarget,
)
from natsctl.cli.schemas.validation import Validate, ValidateOption, Validator
from natsctl.core.compare_and_set import read, rewrite
from natsctl.errors import ConflictError, InvalidObjectError, TooLargeError, UsageError
from natsctl.model.store import Store, Stored

_DOCUMENT_ERRORS = (UsageError, ConflictError, InvalidObjectError, TooLargeError)

app = App()


@app.add(
    "natsctl apply -f shop.yaml",
    "natsctl apply -f manifests/ -f extra.json --create-bucket",
    "natsctl list greetings -o yaml | sed s/hi/hello/ | natsctl apply -f -",
    "natsctl apply -f shop.yaml --dry-run -c controllers.greetings:Greetings",
    notes="A document:\n  bucket: greetings\n  key: shop\n  spec:\n    text: hi",
)
@connected_to_stores
async def apply(
    stores: StoreOptions,
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
    validate: ValidateOption = Validate.STRICT,
    dry_run: DryRunOption = False,
    controller: ThenPlanOption = None,
    output: ChangeOutputOption = "text",
) -> None:
    """Apply objects from files.

    Each document names a bucket and a key. Each field of the document, such as the spec, replaces
    the whole field of the object. Other fields stay, and labels and annotations are merged. An
    object that would not change is not written. If any document is invalid, nothing is written. A
    document is also invalid if it does not match the schema that a daemon has published for its
    bucket; see --validate.

    With --dry-run, the changes are shown and not stored.
    """
    run = DryRun(dry_run, controller, stores, output)
    documents = read_documents(file)
    async with run.writing() as target:
        names = dict.fromkeys(document.bucket for document in documents)
        opened = {name: await target.store(name, create=create_bucket) for name in names}
        validators = {name: await Validator.of(target.connection, name, validate) for name in names}
        versions = _versions(validators, documents)
        statuses = [
            await _apply(
                target, opened[document.bucket], document, validators[document.bucket], version
            )
            for document, version in zip(documents, versions, strict=True)
        ]
        exit_with(statuses)


def _versions(
    validators: Mapping[str, Validator], documents: Sequence[KeyDocument]
) -> list[int | None]:
    """Validate the documents, and return the version of each; exit if one is refused."""
    versions: list[int | None] = []
    statuses = []
    for document in documents:
        try:
            versions.append(validators[document.bucket].check(document.key, document.new))
        except InvalidObjectError as error:
            report_error(f"{document.bucket}/{document.key}: {error}")
            statuses.append(exit_status(error))
    exit_with(statuses)
    return versions


async def _apply(
    target: WriteTarget,
    store: Store,
    document: KeyDocument,
    validator: Validator,
    version: int | None,
) -> int:
    """Apply one document, and return its exit status."""
    name = f"{document.bucket}/{document.key}"
    ignored: list[str] = []

    def change(current: Stored | None) -> bytes:
        if current is None:
            validator.check_new(document.key, document.new)
        ignored[:] = values.ignored_fields(current, document.new)
        desired = values.with_version(current, document.new, version)
        return values.apply(current, desired)

    try:
        seen = await read(store, document.key)
        rewritten = await rewrite(store, document.key, change, seen=seen)
    except _DOCUMENT_ERRORS as error:
        report_error(f"{name}: {error}")
        return exit_status(error)
    target.report(document.bucket, document.key, target.outcome(rewritten))
    values.write_ignored_notice(name, ignored)
    return 0
