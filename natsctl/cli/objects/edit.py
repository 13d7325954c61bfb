"""`natsctl edit`: an object, in a person's own editor."""

from typing import Annotated

import typer

from natsctl.cli.documents.draft import Draft, body, shown, written
from natsctl.cli.documents.editor import Sheet, editor_words
from natsctl.cli.documents.three_way_merge import Clash, merged
from natsctl.cli.documents.values import outcome, replaced
from natsctl.cli.framework.command import Command, commands, connected, examples
from natsctl.cli.framework.controllers import Kinds, kinds_of
from natsctl.cli.objects.buckets import BucketArgument, KeyArgument, bucket_of
from natsctl.cli.output.printing import line
from natsctl.cli.output.terminal import say
from natsctl.core.objects.compare_and_set import Rewritten, rewrite
from natsctl.errors import (
    ConflictError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    TooLargeError,
    UsageError,
)
from natsctl.jetstream.bucket.browse import BucketStore
from natsctl.jetstream.connection.options import NatsOptions
from natsctl.model.keys import check_key
from natsctl.model.store import Stored

_AGAIN = (UsageError, InvalidObjectError, TooLargeError)  # what a person can put right

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl edit greetings shop",
        "natsctl edit greetings shop --controller controllers.greetings:Greetings",
        "EDITOR='code --wait' natsctl edit greetings shop",
    ),
)
@connected
async def edit(
    options: NatsOptions,
    *,
    bucket: BucketArgument,
    key: KeyArgument,
    controller: Annotated[
        str | None,
        typer.Option(
            "--controller",
            "-c",
            metavar="M:C",
            help="a controller whose type for this bucket the object has to be of",
        ),
    ] = None,
) -> None:
    """Change an object in an editor.

    It is shown as YAML, without status and bookkeeping, in the editor that VISUAL or EDITOR
    names, else in vi. What cannot be stored is shown again, with the reason. What others change
    meanwhile stays, and is told where they changed the same. An empty file, or one that is left as
    it is, changes nothing.
    """
    check_key(key)
    kinds = [] if controller is None else kinds_of(controller, bucket)
    async with bucket_of(options, bucket) as found:
        draft = Draft.of(await BucketStore(found).get(key))
    with Sheet(editor_words(), prefix=f"natsctl-{bucket}-{key}") as sheet:
        done = await _stored(options, bucket, draft, sheet, kinds)
    if done is None or done.base is None:
        say("nothing was changed")
    else:
        line(f"{bucket}/{key} {outcome(done)}")


async def _stored(
    options: NatsOptions, bucket: str, draft: Draft, sheet: Sheet, kinds: Kinds
) -> Rewritten | None:
    """Have it edited until it can be stored; None where it is left as it is.

    Raises what was wrong last where nothing is done about that, and keeps the file then.
    """
    text, failed = shown(bucket, draft), ""
    wrong: NatsctlError | None = None
    while True:
        edited = await sheet.edited(text)
        if edited == text or body(edited) in {"", failed}:
            if wrong is None:
                return None
            sheet.keep(body(edited) or body(text))
            raise wrong
        if draft.unchanged(edited):
            return None
        try:
            return await _store(options, bucket, draft.saying(edited), kinds)
        except OvertakenError as overtaken:
            draft, wrong, failed = overtaken.draft, overtaken, ""
            text = shown(bucket, draft, *overtaken.told)
        except _AGAIN as error:
            wrong, failed = error, body(edited)
            text = written(str(error).splitlines(), failed)
        except NatsctlError:
            sheet.keep(body(edited))
            raise


class OvertakenError(ConflictError):
    """Others changed the same fields; `draft` has both, and ours where they clash."""

    def __init__(self, key: str, draft: Draft, clashes: tuple[Clash, ...]) -> None:
        fields = ", ".join(clash.path for clash in clashes)
        super().__init__(f"{key} was changed meanwhile, in {fields}: nothing was stored")
        self.draft = draft
        self.told = (
            *("others have changed it meanwhile:", *(f"  {clash}" for clash in clashes)),
            "delete this line to store what is below all the same",
        )


async def _store(options: NatsOptions, bucket: str, draft: Draft, kinds: Kinds) -> Rewritten:
    """Store the draft upon what is there now. Raises `OvertakenError` where the two clash."""
    key = draft.base.key

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{bucket} has no {key} any more: it was deleted meanwhile")
        theirs = Draft.of(current)
        both = merged(draft.document_before, draft.document, theirs.document)
        if both.clashes:
            raise OvertakenError(key, Draft(current, both.document), both.clashes)
        value = replaced(current, Draft(current, both.document).given())
        for kind in kinds:
            kind.decode(value)
        return value

    async with bucket_of(options, bucket) as found:
        store = BucketStore(found)
        return await rewrite(store, key, change, seen=await store.get(key))
