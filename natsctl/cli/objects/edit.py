"""`natsctl edit`: opens an object in the user's editor, and stores the result."""

import msgspec

from natsctl.cli.documents.draft import Draft, editor_text, with_comments, without_comments
from natsctl.cli.documents.editor import EditedFile, edited_file, editor_command
from natsctl.cli.documents.three_way_merge import Clash, merged
from natsctl.cli.documents.values import replace, with_version
from natsctl.cli.framework.command import App, connected_to_stores
from natsctl.cli.framework.controller_options import KindsOption
from natsctl.cli.framework.controllers import Kinds, load_kinds
from natsctl.cli.framework.names import NameArgument
from natsctl.cli.framework.options import StoreOptions
from natsctl.cli.objects.buckets import open_bucket
from natsctl.cli.objects.writing import ChangeOutputOption, DryRun, DryRunOption
from natsctl.cli.output.terminal import write_notice
from natsctl.cli.schemas.validation import Validate, ValidateOption, Validator
from natsctl.core.compare_and_set import Rewritten, rewrite
from natsctl.errors import (
    ConflictError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    TooLargeError,
    UsageError,
)
from natsctl.jetstream.store import BucketStore
from natsctl.model.store import Stored
from natsctl.operate.names import parse_name

_CORRECTABLE = (UsageError, InvalidObjectError, TooLargeError)
"""Errors for which the editor is opened again."""

app = App()


@app.add(
    "natsctl edit greetings/shop",
    "natsctl edit greetings shop --controller controllers.greetings:Greetings",
    "EDITOR='code --wait' natsctl edit greetings shop",
)
@connected_to_stores
async def edit(
    stores: StoreOptions,
    *,
    object_: NameArgument,
    controller: KindsOption = None,
    validate: ValidateOption = Validate.STRICT,
    dry_run: DryRunOption = False,
    output: ChangeOutputOption = "text",
) -> None:
    """Edit an object in an editor.

    The editor is the command in VISUAL or EDITOR, else vi. It shows the object as YAML, without
    status and bookkeeping. If the object cannot be stored, the editor opens again with the reason;
    an object that does not match its published schema cannot be stored, see --validate.
    Changes that other clients make in the meantime are merged; if they change the same fields, the
    editor opens again and lists them. An empty or unchanged file changes nothing.

    With --dry-run, the change is shown and not stored; with --controller, so is the plan that
    follows.
    """
    name = parse_name(object_)
    run = DryRun(dry_run, controller if dry_run else None, stores, output)
    async with open_bucket(stores.nats, name.bucket) as source:
        kinds = load_kinds(controller, source.name)
        target = _Target(source.name, kinds, validate, run)
        draft = Draft.of(await BucketStore(source).get(name.key))
    with edited_file(editor_command(), prefix=f"natsctl-{source.name}-{name.key}") as file:
        rewritten = await _edit(target, draft, file)
    if rewritten is None or rewritten.base is None:
        write_notice("nothing was changed")


class _Target(msgspec.Struct, frozen=True):
    """The bucket of the object, and the checks of its new value."""

    bucket: str
    kinds: Kinds
    validate: Validate
    run: DryRun


async def _edit(target: _Target, draft: Draft, file: EditedFile) -> Rewritten | None:
    """Open the editor until the object is stored; return None if the user changes nothing.

    Raises the last error, and keeps the file, if the user does not correct an error.
    """
    text, rejected = editor_text(target.bucket, draft), ""
    last_error: NatsctlError | None = None
    while True:
        edited = await file.edit(text)
        if edited == text or without_comments(edited) in {"", rejected}:
            if last_error is None:
                return None
            file.keep(without_comments(edited) or without_comments(text))
            raise last_error
        if draft.unchanged(edited):
            return None
        try:
            return await _store(target, draft.edited(edited))
        except ClashError as error:
            draft, last_error, rejected = error.draft, error, ""
            text = editor_text(target.bucket, draft, *error.notes)
        except _CORRECTABLE as error:
            last_error, rejected = error, without_comments(edited)
            text = with_comments(str(error).splitlines(), rejected)
        except NatsctlError:
            file.keep(without_comments(edited))
            raise


class ClashError(ConflictError):
    """Another client changed the same fields.

    Attributes:
        draft: the merged object, with our values in the fields that clash.
        notes: comments for the editor.
    """

    def __init__(self, key: str, draft: Draft, clashes: tuple[Clash, ...]) -> None:
        fields = ", ".join(clash.path for clash in clashes)
        super().__init__(f"{key} was changed in the meantime, in {fields}: nothing was stored")
        self.draft = draft
        self.notes = (
            *("other clients have changed these fields:", *(f"  {clash}" for clash in clashes)),
            "delete this line to store your values below",
        )


async def _store(target: _Target, draft: Draft) -> Rewritten:
    """Merge the draft into the stored object, and store it.

    Raises `ClashError`, and `InvalidObjectError` if a changed field does not match its schema.
    """
    key, bucket = draft.base.key, target.bucket
    version: int | None = None

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{bucket} has no {key} any more: it was deleted in the meantime")
        stored = Draft.of(current)
        merge = merged(draft.document_before, draft.document, stored.document)
        new = Draft(current, merge.document)
        if merge.clashes:
            raise ClashError(key, new, merge.clashes)
        value = replace(current, with_version(current, new.new_value(), version))
        for kind in target.kinds:
            kind.decode(value)
        return value

    async with target.run.writing() as written:
        validator = await Validator.of(written.connection, bucket, target.validate)
        if draft.changes_fields:
            version = validator.check(key, draft.changed_value())
        validator.check_new(key, draft.new_value())
        store = await written.store(bucket)
        rewritten = await rewrite(store, key, change, seen=await store.get(key))
        if rewritten.base is not None:
            written.report(bucket, key, written.outcome(rewritten))
        return rewritten
