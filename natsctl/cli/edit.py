"""`natsctl edit`: opens an object in the user's editor, and stores the result."""

import asyncio
import os
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import yaml
from msgspec import UNSET

from natsctl.cli.command import App, Kinds, KindsOf, OneObject, StoreOptions, load_kinds
from natsctl.cli.output import TABLE, OutputOption, yaml_text
from natsctl.cli.schemas import Checked, Validate, Validator
from natsctl.cli.terminal import write_notice
from natsctl.cli.values import parsed_yaml, replace, value_of_document, with_version
from natsctl.cli.writing import DryRun, Writing, writing
from natsctl.core.compare_and_set import Rewritten, rewrite
from natsctl.errors import (
    ConflictError,
    InvalidObjectError,
    NatsctlError,
    NotFoundError,
    TooLargeError,
    UsageError,
)
from natsctl.jetstream.bucket import Message
from natsctl.jetstream.store import BucketStore
from natsctl.model import documents, exact_json
from natsctl.model.documents import BOOKKEEPING, Document, same
from natsctl.model.store import Stored
from natsctl.operate.buckets import open_bucket
from natsctl.operate.objects import ENVELOPE, described, is_object, parse_name
from natsctl.telemetry.escaping import escaped

app = App()


class Clash(msgspec.Struct, frozen=True):
    """A field that both sides changed; *theirs* is `UNSET` if the other side removed it."""

    path: str
    theirs: object

    def __str__(self) -> str:
        removed = self.theirs is UNSET
        value = "removed" if removed else exact_json.encode(self.theirs).decode()
        return f"{self.path} is {value}"


def merged(base: Document, ours: Document, theirs: Document) -> tuple[Document, list[Clash]]:
    """Merge *ours* and *theirs*, which are both changes of *base*.

    Mappings are merged field by field, at every level. A list is one value. A field that clashes
    has our value.
    """
    clashes: list[Clash] = []

    def fields(base: Document, ours: Document, theirs: Document, path: str) -> Document:
        merged: Document = {}
        for name in dict.fromkeys((*ours, *theirs)):
            before, our, their = (side.get(name, UNSET) for side in (base, ours, theirs))
            found = value(before, our, their, f"{path}.{name}" if path else name)
            if found is not UNSET:
                merged[name] = found
        return merged

    def value(base: object, ours: object, theirs: object, path: str) -> object:
        if same(theirs, ours) or same(theirs, base):
            return ours
        if same(ours, base):
            return theirs
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return fields(base if isinstance(base, dict) else {}, ours, theirs, path)
        clashes.append(Clash(path, theirs))
        return ours

    return fields(base, ours, theirs, ""), clashes


class Draft(msgspec.Struct, frozen=True):
    """The edited fields of an object, and the stored object as it was before."""

    base: Stored
    document: Document


def visible(stored: Stored) -> Document:
    """Return the fields that can be edited."""
    message = Message(stored.key, stored.revision, stored.value, marker=None, created="")
    fields = documents.without(described("", message), *ENVELOPE)
    if not is_object(fields):
        return fields
    metadata = documents.without(documents.metadata_of(fields), *BOOKKEEPING)
    other_fields = documents.without(fields, "metadata", "status")
    return {"metadata": metadata, **other_fields} if metadata else other_fields


def editor_text(bucket: str, draft: Draft, *notes: str) -> str:
    """Return the text that the editor shows: the notes as comments, and the draft."""
    head = (
        f"{bucket}/{draft.base.key} at revision {draft.base.revision}.",
        "Save the file to store the object. An unchanged or empty file changes nothing.",
        *notes,
    )
    return with_comments(head, yaml_text(draft.document))


def with_comments(comments: Iterable[str], text: str) -> str:
    """Return the text below one comment line for each comment."""
    return "".join(f"# {escaped(comment)}\n" for comment in comments) + text.strip("\n") + "\n"


def without_comments(text: str) -> str:
    """Return the text without its first comments, and without empty lines at its ends."""
    lines = text.strip().splitlines()
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _edited(text: str) -> Document:
    try:
        document = parsed_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"this is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise UsageError("this is not a mapping: an object has fields such as spec")
    return documents.parse(documents.render(document))


def _check_hidden(document: Document, before: Document) -> None:
    metadata = document.get("metadata")
    names = [name for name in (*ENVELOPE, "status") if name in document]
    if isinstance(metadata, dict):
        names += [f"metadata.{name}" for name in BOOKKEEPING if name in metadata]
    if names and (is_object(document) or is_object(before)):
        raise UsageError(f"{', '.join(names)} cannot be changed here: leave it out")


# ---- the editor


def _editor() -> list[str]:
    for variable in ("VISUAL", "EDITOR"):
        if text := os.environ.get(variable):
            try:
                return shlex.split(text) or ["vi"]
            except ValueError as error:
                raise UsageError(
                    f"{variable} is {text!r}, which is not a command: {error}"
                ) from error
    return ["vi"]


@contextmanager
def _edited_file(command: Sequence[str], prefix: str) -> Iterator["_EditedFile"]:
    """Create a temporary file that only this user can read, for the editor *command*."""
    descriptor, name = tempfile.mkstemp(prefix=f"{prefix.replace('/', '_')}-", suffix=".yaml")
    os.close(descriptor)
    file = _EditedFile(command, Path(name))
    try:
        yield file
    finally:
        if not file.kept:
            file.path.unlink(missing_ok=True)


class _EditedFile:
    def __init__(self, command: Sequence[str], path: Path) -> None:
        self.path, self.kept, self._command = path, False, command

    async def edit(self, text: str) -> str:
        """Open *text* in the editor, and return the text when the editor has ended."""
        self.path.write_text(text, "utf-8")
        try:
            process = await asyncio.create_subprocess_exec(*self._command, str(self.path))
        except OSError as error:
            raise UsageError(
                f"the editor {self._command[0]!r} cannot be run ({error.strerror}): name another "
                "in EDITOR"
            ) from error
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        reason = f"the editor ended with status {status}: nothing was stored"
        if not status:
            try:
                return self.path.read_text("utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = f"the edited file cannot be read: {error}"
        with suppress(OSError):
            if self.path.read_bytes() != text.encode():
                self._keep()
        raise NatsctlError(reason)

    def keep(self, text: str) -> None:
        """Write *text* to the file, and keep the file."""
        self.path.write_text(f"{text}\n", "utf-8")
        self._keep()

    def _keep(self) -> None:
        self.kept = True
        write_notice(f"your text is kept in {self.path}")


class ClashError(ConflictError):
    """Another client changed the same fields; *draft* is merged, with our values in them."""

    def __init__(self, draft: Draft, clashes: Sequence[Clash]) -> None:
        fields = ", ".join(clash.path for clash in clashes)
        key = draft.base.key
        super().__init__(f"{key} was changed in the meantime, in {fields}: nothing was stored")
        self.draft = draft
        self.notes = (
            *("other clients have changed these fields:", *(f"  {clash}" for clash in clashes)),
            "delete this line to store your values below",
        )


@app.add(
    "natsctl edit greetings/shop",
    "natsctl edit greetings shop --controller controllers.greetings:Greetings",
    "EDITOR='code --wait' natsctl edit greetings shop",
)
async def edit(  # noqa: C901 - the loop of one editor
    stores: StoreOptions,
    *,
    object_: OneObject,
    controller: KindsOf = None,
    validate: Checked = Validate.STRICT,
    dry_run: DryRun = False,
    output: OutputOption = TABLE,
) -> None:
    """Edit an object in an editor.

    The editor is the command in VISUAL or EDITOR, else vi. If the object can't be stored, it opens
    again with the reason. Changes that other clients make in the meantime are merged; a field that
    they changed too is listed. An empty or unchanged file changes nothing.
    """
    if output != TABLE and not dry_run:
        raise UsageError("--output is the format of a dry run: it needs --dry-run")
    name = parse_name(object_)
    async with open_bucket(stores.nats, name.bucket) as source:
        bucket, kinds = source.name, load_kinds(controller, source.name)
        base = await BucketStore(source).get(name.key)

    # the editor opens until the object is stored, or until nothing is corrected
    draft, rejected = Draft(base, visible(base)), ""
    text, unchanged = editor_text(bucket, draft), True
    last_error: NatsctlError | None = None
    with _edited_file(_editor(), f"natsctl-{bucket}-{name.key}") as file:
        while True:
            edited = await file.edit(text)
            try:
                if edited == text or without_comments(edited) in {"", rejected}:
                    if last_error is None:
                        break
                    file.keep(without_comments(edited) or without_comments(text))
                    raise last_error
                document, before = _edited(edited), visible(draft.base)
                if same(document, before):
                    break
                _check_hidden(document, before)
                new, then = Draft(draft.base, document), controller if dry_run else None
                async with writing(
                    stores, dry_run=dry_run, controller=then, output=output
                ) as target:
                    rewritten = await _store(new, bucket, kinds, validate, target)
                unchanged = rewritten.base is None
                break
            except ClashError as error:
                if error is last_error:
                    raise
                draft, last_error, rejected = error.draft, error, ""
                text = editor_text(bucket, draft, *error.notes)
            except (UsageError, InvalidObjectError, TooLargeError) as error:
                if error is last_error:
                    raise
                last_error, rejected = error, without_comments(edited)
                text = with_comments(str(error).splitlines(), rejected)
            except NatsctlError:
                file.keep(without_comments(edited))
                raise
    if unchanged:
        write_notice("nothing was changed")


async def _store(
    draft: Draft, bucket: str, kinds: Kinds, validate: Validate, target: Writing
) -> Rewritten:
    """Merge the draft into the stored object, and store it; raises `ClashError`."""
    key, before = draft.base.key, visible(draft.base)
    new, version = value_of_document(draft.document), None
    changed = {
        field: value
        for field, value in draft.document.items()
        if field not in before or not same(value, before[field])
    }

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{bucket} has no {key} any more: it was deleted in the meantime")
        document, clashes = merged(before, draft.document, visible(current))
        if clashes:
            raise ClashError(Draft(current, document), clashes)
        value = replace(current, with_version(current, value_of_document(document), version))
        for kind in kinds:
            kind.decode(value)
        return value

    validator = await Validator.of(target.connection, bucket, validate)
    if changed.keys() - {"metadata"}:
        version = validator.check(key, changed if is_object(draft.document) else new)
    validator.check_new(key, new)
    store = await target.store(bucket)
    rewritten = await rewrite(store, key, change, seen=await store.get(key))
    if rewritten.base is not None:
        target.report(f"{bucket}/{key}", target.outcome(rewritten))
    return rewritten
