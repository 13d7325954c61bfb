"""`natsctl edit`: opens an object in the user's editor, and stores the result."""

import asyncio
import difflib
import os
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import yaml

from natsctl.cli.command import App, OneObject, StoreOptions
from natsctl.cli.output import TABLE, OutputOption, yaml_text
from natsctl.cli.schemas import Checked, Validate, Validator
from natsctl.cli.terminal import write_notice
from natsctl.cli.values import parsed_yaml, value_of_document, with_version
from natsctl.cli.writing import DryRun, Writing, check_dry_run, writing
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
from natsctl.model.store import Stored
from natsctl.operate.buckets import open_bucket
from natsctl.operate.objects import ENVELOPE, Name, described, is_object, parse_name, replaced
from natsctl.telemetry.escaping import escaped

app = App()


@app.add(
    "natsctl edit greetings/shop",
    "EDITOR='code --wait' natsctl edit greetings shop --dry-run",
)
async def edit(
    stores: StoreOptions,
    *,
    object_: OneObject,
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
        base = await BucketStore(source).get(name.key)
    head = (
        f"{name} at revision {base.revision}.",
        "Save the file to store the object. An unchanged or empty file changes nothing.",
    )
    text, rejected = with_comments(head, yaml_text(visible(base))), ""
    failure: NatsctlError | None = None
    with _EditedFile(f"natsctl-{name}-".replace("/", "_")) as file:
        while True:  # until the object is stored, or nothing is corrected
            typed = await file.edit(text)
            edited, before = without_comments(typed), visible(base)
            if typed == text or edited in {"", rejected}:
                if failure is not None:
                    raise failure
                break
            try:
                document = _edited(edited, before)
                if same(document, before):
                    break
                async with writing(stores, dry_run=dry_run, output=output) as target:
                    validator = await Validator.of(target.connection, name.bucket, validate)
                    await _store(target, name, before, document, validator)
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
            else:
                return
    write_notice("nothing was changed")


class ChangedError(ConflictError):
    """Others have changed the object to *current*, while it was edited."""

    def __init__(self, current: Stored) -> None:
        super().__init__(f"{current.key} was changed in the meantime: nothing was stored")
        self.current = current


async def _store(
    target: Writing, name: Name, before: Document, document: Document, validator: Validator
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
        return replaced(current, with_version(current, new, version))

    await target.write(await target.store(name.bucket), name, change)


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


class _EditedFile:
    """A file that only this user can read, for the user's editor.

    If its context ends with an error, the user's text is kept.
    """

    def __init__(self, prefix: str) -> None:
        self._command, self._kept = ["vi"], ""
        for variable in ("EDITOR", "VISUAL"):
            text = os.environ.get(variable, "")
            try:
                self._command = shlex.split(text) or self._command
            except ValueError as error:
                raise UsageError(
                    f"{variable} is {text!r}, which is not a command: {error}"
                ) from error
        descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".yaml")
        os.close(descriptor)
        self._path = Path(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None or not self._kept:
            self._path.unlink(missing_ok=True)
            return
        self._path.write_text(f"{self._kept}\n", "utf-8", "surrogateescape")
        write_notice(f"your text is kept in {self._path}")

    async def edit(self, text: str) -> str:
        """Open *text* in the editor, and return the text when the editor has ended."""
        self._kept = self._kept and without_comments(text)
        self._path.write_text(text, "utf-8")
        try:
            process = await asyncio.create_subprocess_exec(*self._command, str(self._path))
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
        try:
            typed = self._path.read_text("utf-8", "surrogateescape")
        except OSError as error:
            raise NatsctlError(f"the edited file cannot be read: {error}") from error
        if typed != text:
            self._kept = without_comments(typed) or self._kept
        if status:
            raise NatsctlError(f"the editor ended with status {status}: nothing was stored")
        try:
            typed.encode()
        except UnicodeEncodeError as error:
            raise NatsctlError(f"the edited file is not UTF-8: {error}") from error
        return typed
