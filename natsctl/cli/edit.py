"""`natsctl edit`: opens an object in the user's editor, and stores the result."""

import asyncio
import difflib
import os
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from natsctl.cli.command import App, KindsOf, OneObject, StoreOptions, load_kinds
from natsctl.cli.output import TABLE, OutputOption, yaml_text
from natsctl.cli.schemas import Checked, Validate, Validator
from natsctl.cli.terminal import write_notice
from natsctl.cli.values import parsed_yaml, replace, value_of_document, with_version
from natsctl.cli.writing import DryRun, Writing, check_dry_run, writing
from natsctl.core.compare_and_set import rewrite
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
from natsctl.model import documents
from natsctl.model.documents import BOOKKEEPING, Document, same
from natsctl.model.kinds import KvKind
from natsctl.model.store import Stored
from natsctl.operate.buckets import open_bucket
from natsctl.operate.objects import ENVELOPE, Name, described, is_object, parse_name
from natsctl.telemetry.escaping import escaped

app = App()


@app.add(
    "natsctl edit greetings/shop",
    "natsctl edit greetings shop --controller controllers.greetings:Greetings",
    "EDITOR='code --wait' natsctl edit greetings shop",
)
async def edit(
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
    again with the reason. If other clients change the object in the meantime, it opens again with
    their changes and yours. An empty or unchanged file changes nothing.
    """
    check_dry_run(dry_run=dry_run, controller=None, output=output)
    name = parse_name(object_)
    async with open_bucket(stores.nats, name.bucket) as source:
        name = Name(source.name, name.key)
        base, kinds = await BucketStore(source).get(name.key), load_kinds(controller, source.name)

    head = (
        f"{name} at revision {base.revision}.",
        "Save the file to store the object. An unchanged or empty file changes nothing.",
    )
    text, rejected = with_comments(head, yaml_text(visible(base))), ""
    failure: NatsctlError | None = None
    with _edited_file(f"natsctl-{name}-".replace("/", "_")) as file:
        while True:  # until the object is stored, or nothing is corrected
            typed = await file.edit(text)
            edited, before = without_comments(typed), visible(base)
            if typed == text or edited in {"", rejected}:
                if failure is None:
                    break
                file.keep(edited or without_comments(text))
                raise failure
            try:
                document = _edited(edited, before)
                if same(document, before):
                    break
                then = controller if dry_run else None
                async with writing(
                    stores, dry_run=dry_run, controller=then, output=output
                ) as target:
                    validator = await Validator.of(target.connection, name.bucket, validate)
                    await _store(target, name, before, document, validator, kinds=kinds)
            except ChangedError as error:
                base, failure, rejected = error.current, error, ""
                old, new = yaml_text(before).splitlines(), yaml_text(visible(base)).splitlines()
                changes = [*difflib.unified_diff(old, new, lineterm="")][2:]
                hint = "delete this line to store the object as it is below, with your changes"
                mine = documents.patch_between(before, document)
                merged = documents.merge_patch(visible(base), mine)
                text = with_comments([str(error), *changes, hint], yaml_text(merged))
            except (UsageError, InvalidObjectError, TooLargeError) as error:
                failure, rejected = error, edited
                text = with_comments(str(error).splitlines(), edited)
            except NatsctlError:
                file.keep(edited)
                raise
            else:
                return
    write_notice("nothing was changed")


class ChangedError(ConflictError):
    """Others have changed the object to *current*, while it was edited."""

    def __init__(self, current: Stored) -> None:
        super().__init__(f"{current.key} was changed in the meantime: nothing was stored")
        self.current = current


async def _store(
    target: Writing,
    name: Name,
    before: Document,
    document: Document,
    validator: Validator,
    *,
    kinds: Sequence[KvKind[object]],
) -> None:
    """Store the edited document, unless the fields are no longer those *before*."""
    new, version = value_of_document(document), None
    changed = {
        field: value
        for field, value in document.items()
        if field not in before or not same(value, before[field])
    }
    if changed.keys() - {"metadata"}:
        version = validator.check(name.key, changed if is_object(document) else new)
    validator.check_new(name.key, new)

    def change(current: Stored | None) -> bytes:
        if current is None:
            raise NotFoundError(f"{name.bucket} has no {name.key} any more: it was deleted")
        if not same(visible(current), before):
            raise ChangedError(current)
        value = replace(current, with_version(current, new, version))
        for kind in kinds:
            kind.decode(value)
        return value

    store = await target.store(name.bucket)
    rewritten = await rewrite(store, name.key, change, seen=await store.get(name.key))
    target.report(str(name), target.outcome(rewritten))


def visible(stored: Stored) -> Document:
    """Return the fields that can be edited."""
    message = Message(stored.key, stored.revision, stored.value, marker=None, created="")
    fields = documents.without(described("", message), *ENVELOPE)
    if not is_object(fields):
        return fields
    metadata = documents.without(documents.metadata_of(fields), *BOOKKEEPING)
    other_fields = documents.without(fields, "metadata", "status")
    return {"metadata": metadata, **other_fields} if metadata else other_fields


def with_comments(comments: Iterable[str], text: str) -> str:
    """Return the text below one comment line for each comment."""
    return "".join(f"# {escaped(comment)}\n" for comment in comments) + text.strip("\n") + "\n"


def without_comments(text: str) -> str:
    """Return the text without its first comments, and without empty lines at its ends."""
    lines = text.strip().splitlines()
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _edited(text: str, before: Document) -> Document:
    """Return the fields in an edited text; raises `UsageError` if others than *before* may be."""
    try:
        document = parsed_yaml(text)
    except yaml.YAMLError as error:
        raise UsageError(f"this is not valid YAML: {error}") from error
    if not isinstance(document, dict):
        raise UsageError("this is not a mapping: an object has fields such as spec")
    document = documents.parse(documents.render(document))
    names = [name for name in (*ENVELOPE, "status") if name in document]
    metadata = documents.metadata_of(document)
    names += [f"metadata.{name}" for name in BOOKKEEPING if name in metadata]
    if names and (is_object(document) or is_object(before)):
        raise UsageError(f"{', '.join(names)} cannot be changed here: leave it out")
    return document


@contextmanager
def _edited_file(prefix: str) -> Iterator["_EditedFile"]:
    """Create a temporary file that only this user can read, for the user's editor."""
    command = ["vi"]
    for variable in ("EDITOR", "VISUAL"):
        try:
            command = shlex.split(os.environ.get(variable, "")) or command
        except ValueError as error:
            text = os.environ[variable]
            raise UsageError(f"{variable} is {text!r}, which is not a command: {error}") from error
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".yaml")
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
                self.keep()
        raise NatsctlError(reason)

    def keep(self, text: str | None = None) -> None:
        """Keep the file, with *text* in it."""
        if text is not None:
            self.path.write_text(f"{text}\n", "utf-8")
        self.kept = True
        write_notice(f"your text is kept in {self.path}")
