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

from natsctl.cli.arguments import Kinds, KindsOption, NameArgument, load_kinds
from natsctl.cli.command import App, StoreOptions, connected_to_stores
from natsctl.cli.output import TABLE, OutputOption, yaml_text
from natsctl.cli.parsing import parsed_yaml
from natsctl.cli.schemas import Validate, ValidateOption, Validator
from natsctl.cli.terminal import write_notice
from natsctl.cli.values import DesiredObject, NewValue, replace, value_of_document, with_version
from natsctl.cli.writing import DryRun, DryRunOption
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
from natsctl.operate.entries import ENVELOPE, described, is_object
from natsctl.operate.names import parse_name
from natsctl.telemetry.escaping import escaped

app = App()


class Clash(msgspec.Struct, frozen=True):
    """A field that both sides changed to different values.

    Attributes:
        path: the path of the field, such as `spec.text`.
        theirs: the value of the other side; `UNSET` if the other side removed the field.
    """

    path: str
    theirs: object

    def __str__(self) -> str:
        removed = self.theirs is UNSET
        value = "removed" if removed else exact_json.encode(self.theirs).decode()
        return f"{self.path} is {value}"


class Merged(msgspec.Struct, frozen=True):
    """A document with the changes of both sides. A field that clashes has our value."""

    document: dict[str, object]
    clashes: tuple[Clash, ...]


def merged(base: dict[str, object], ours: dict[str, object], theirs: dict[str, object]) -> Merged:
    """Merge *ours* and *theirs*, which are both changes of *base*.

    Mappings are merged field by field, at every level. A list is one value.
    """
    clashes: list[Clash] = []
    document = dict(_fields(base, ours, theirs, (), clashes))
    return Merged(document, tuple(clashes))


def _fields(
    base: dict[str, object],
    ours: dict[str, object],
    theirs: dict[str, object],
    path: tuple[str, ...],
    clashes: list[Clash],
) -> Iterator[tuple[str, object]]:
    for name in dict.fromkeys((*ours, *theirs)):
        before, our, their = (side.get(name, UNSET) for side in (base, ours, theirs))
        value = _value(before, our, their, (*path, name), clashes)
        if value is not UNSET:
            yield name, value


def _value(
    base: object, ours: object, theirs: object, path: tuple[str, ...], clashes: list[Clash]
) -> object:
    if same(theirs, ours) or same(theirs, base):
        return ours
    if same(ours, base):
        return theirs
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return dict(_fields(base if isinstance(base, dict) else {}, ours, theirs, path, clashes))
    clashes.append(Clash(".".join(path), theirs))
    return ours


class Draft(msgspec.Struct, frozen=True):
    """The edited fields of an object, and the stored object as it was before."""

    base: Stored
    document: Document

    @classmethod
    def of(cls, base: Stored) -> "Draft":
        """Return a draft that changes nothing."""
        return cls(base, _visible(base))

    @property
    def document_before(self) -> Document:
        """The fields before they were edited."""
        return _visible(self.base)

    def unchanged(self, text: str) -> bool:
        """Return whether *text* describes the stored object."""
        try:
            return documents.same(_parsed(text), self.document_before)
        except UsageError:
            return False

    def edited(self, text: str) -> "Draft":
        """Return the draft with the fields in *text*; raises `UsageError` if they are invalid."""
        document = _parsed(text)
        hidden = [name for name in (*ENVELOPE, "status") if name in document]
        metadata = document.get("metadata")
        if isinstance(metadata, dict):
            hidden += [f"metadata.{name}" for name in BOOKKEEPING if name in metadata]
        if hidden and (is_object(document) or is_object(self.document_before)):
            raise UsageError(f"{', '.join(hidden)} cannot be changed here: leave it out")
        return Draft(self.base, document)

    @property
    def changes_fields(self) -> bool:
        """Return whether fields beside the metadata were changed."""
        return bool(self._changed().keys() - {"metadata"})

    def changed_value(self) -> NewValue:
        """Return the changed fields of an object, or the whole value if it is not an object."""
        return DesiredObject(self._changed()) if is_object(self.document) else self.new_value()

    def _changed(self) -> Document:
        before = self.document_before
        return {
            name: field
            for name, field in self.document.items()
            if name not in before or not documents.same(field, before[name])
        }

    def new_value(self) -> NewValue:
        """Return the value to store; raises `UsageError` if the draft has no spec and no value."""
        return value_of_document(self.document)


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


def _visible(stored: Stored) -> Document:
    message = Message(stored.key, stored.revision, stored.value, marker=None, created="")
    fields = documents.without(described("", message), *ENVELOPE)
    if not is_object(fields):
        return fields
    metadata = documents.without(documents.metadata_of(fields), *BOOKKEEPING)
    other_fields = documents.without(fields, "metadata", "status")
    return {"metadata": metadata, **other_fields} if metadata else other_fields


def _parsed(text: str) -> Document:
    try:
        document = parsed_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"this is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise UsageError("this is not a mapping: an object has fields such as spec")
    return documents.parse(documents.render(document))


VARIABLES = ("VISUAL", "EDITOR")

DEFAULT = "vi"


def editor_command() -> list[str]:
    """Return the words of the editor's command line.

    Raises `UsageError` if the environment variable is not a valid command line.
    """
    named = next(((name, os.environ[name]) for name in VARIABLES if os.environ.get(name)), None)
    variable, text = named or ("", DEFAULT)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{variable} is {text!r}, which is not a command: {error}") from error
    return words or [DEFAULT]


@contextmanager
def edited_file(command: Sequence[str], *, prefix: str) -> Iterator["EditedFile"]:
    """Create a temporary file that only this user can read, for the editor *command*.

    The file is deleted at the end of the context, unless it was kept.
    """
    descriptor, name = tempfile.mkstemp(prefix=f"{prefix.replace('/', '_')}-", suffix=".yaml")
    os.close(descriptor)
    file = EditedFile(command, Path(name))
    try:
        yield file
    finally:
        if not file.kept:
            file.path.unlink(missing_ok=True)


class EditedFile:
    """A temporary file and the editor that opens it; see `edited_file`."""

    def __init__(self, command: Sequence[str], path: Path) -> None:
        self.path = path
        self.kept = False
        self._command = command

    async def edit(self, text: str) -> str:
        """Open *text* in the editor, and return the text when the editor has ended.

        Raises `UsageError` if the editor cannot be started, and `NatsctlError` if it fails or
        leaves a file that cannot be read. A changed file is kept then.
        """
        self.path.write_text(text, "utf-8")
        try:
            process = await asyncio.create_subprocess_exec(*self._command, str(self.path))
        except OSError as error:
            raise UsageError(
                f"the editor {self._command[0]!r} cannot be run ({error.strerror}): name another "
                f"in {VARIABLES[-1]}"
            ) from error
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if status:
            self._keep_if_changed(text)
            raise NatsctlError(f"the editor ended with status {status}: nothing was stored")
        try:
            return self.path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self._keep_if_changed(text)
            raise NatsctlError(f"the edited file cannot be read: {error}") from error

    def keep(self, text: str) -> None:
        """Write *text* to the file, and keep the file."""
        self.path.write_text(f"{text}\n", "utf-8")
        self._keep()

    def _keep_if_changed(self, original: str) -> None:
        with suppress(OSError):
            if self.path.read_bytes() != original.encode():
                self._keep()

    def _keep(self) -> None:
        self.kept = True
        write_notice(f"your text is kept in {self.path}")


_CORRECTABLE = (UsageError, InvalidObjectError, TooLargeError)
"""Errors for which the editor is opened again."""


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
    output: OutputOption = TABLE,
) -> None:
    """Edit an object in an editor.

    The editor is the command in VISUAL or EDITOR, else vi. If the object can't be stored, it opens
    again with the reason. Changes that other clients make in the meantime are merged; a field that
    they changed too is listed. An empty or unchanged file changes nothing.
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
