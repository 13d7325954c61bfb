"""Reads and writes backup files: a header, a line per key, and a trailer with a checksum.

Each line is a JSON document. Values are stored byte for byte: as text if they are UTF-8, otherwise
in base64. `docs/backup.md` documents the format for other programs.
"""

import base64
import binascii
import gzip
import hashlib
import zlib
from collections.abc import Iterator
from typing import BinaryIO, TypeVar

import msgspec

from natsctl.errors import DECODE_ERRORS, UsageError

VERSION = 1
LINE_MAX_BYTES = 256 * 1024 * 1024  # four times the largest value that a server accepts

T = TypeVar("T")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line.

    Attributes:
        natsctl_backup: the version of the format.
        bucket: the name of the bucket.
        created: when the backup was made (RFC 3339).
        options: the options of the bucket, by the names that NATS gives those of a stream.
    """

    natsctl_backup: int
    bucket: str
    created: str
    options: dict[str, object] = {}


class ArchiveEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key and its value, in `text` or `base64`.

    Attributes:
        key: the key.
        revision: the value's revision in the bucket that was backed up.
        written: when the value was written (RFC 3339).
        ttl: the value's time to live in the form of its `Nats-TTL` header; empty if it has none.
        text: the value, if it is UTF-8.
        base64: the value, if it is not.
    """

    key: str
    revision: int
    written: str = ""
    ttl: str = ""
    text: str | None = None
    base64: str | None = None

    @classmethod
    def of(cls, key: str, revision: int, value: bytes, *, written: str, ttl: str) -> "ArchiveEntry":
        """Return the entry of a value."""
        try:
            text, coded = value.decode(), None
        except UnicodeDecodeError:
            text, coded = None, base64.b64encode(value).decode()
        return cls(key=key, revision=revision, written=written, ttl=ttl, text=text, base64=coded)

    @property
    def value(self) -> bytes:
        """The value; raises `UsageError` if its base64 is damaged."""
        try:
            if self.text is not None:
                return self.text.encode()
            return base64.b64decode(self.base64 or "", validate=True)
        except binascii.Error as error:
            raise UsageError(f"the base64 of key {self.key} is damaged: {error}") from error


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line.

    Attributes:
        entries: the number of lines with entries.
        void: the number of entries at the start that do not count, because the backup restarted.
        keys: the number of keys.
        superseded: the keys that changed during the backup, each with the revision of the entry
            that counts, or 0 if the key was deleted.
        sha256: the checksum of all previous lines.
    """

    entries: int
    void: int = 0
    keys: int
    superseded: dict[str, int]
    sha256: str


class Contents(msgspec.Struct, frozen=True):
    """The header and the trailer of a complete file."""

    header: Header
    trailer: Trailer


class ArchiveWriter:
    """Writes a backup file."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._entries = 0
        self._void = 0
        self._seen: set[str] = set()
        self._superseded: dict[str, int] = {}
        self._write(header)

    def add(self, entry: ArchiveEntry) -> None:
        """Write an entry, which supersedes an earlier entry of the same key."""
        if entry.key in self._seen:
            self._superseded[entry.key] = entry.revision
        self._seen.add(entry.key)
        self._entries += 1
        self._write(entry)

    def remove(self, key: str) -> None:
        """Record that a key was deleted after its entry was written."""
        if key in self._seen:
            self._superseded[key] = 0

    def restart(self) -> None:
        """Void all entries written so far."""
        self._void = self._entries
        self._seen.clear()
        self._superseded.clear()

    def finish(self) -> int:
        """Write the trailer, which completes the file; return the number of keys."""
        deleted = sum(not revision for revision in self._superseded.values())
        trailer = Trailer(
            entries=self._entries,
            void=self._void,
            keys=len(self._seen) - deleted,
            superseded=self._superseded,
            sha256=self._digest.hexdigest(),
        )
        self._write(trailer)
        return trailer.keys

    def _write(self, line: msgspec.Struct) -> None:
        data = msgspec.json.encode(line) + b"\n"
        self._digest.update(data)
        self._file.write(data)


def contents(file: BinaryIO) -> Contents:
    """Read the whole file; return its header and trailer.

    Raises `UsageError` if the file is not a backup, has another version, is truncated or damaged.
    """
    digest = hashlib.sha256()
    header, last, number = None, b"", 0
    for number, line in enumerate(_lines(file), 1):
        if number == 1:
            header = _header(line)
        else:
            digest.update(last)
        last = line
    if header is None:
        raise UsageError("the file is empty")
    trailer = _decoded(last, Trailer, number, "it ends too early: the backup is not complete")
    if trailer.sha256 != digest.hexdigest() or trailer.entries != number - 2:
        raise UsageError("its checksum is wrong: the backup is damaged")
    return Contents(header, trailer)


def entries(file: BinaryIO, trailer: Trailer) -> Iterator[ArchiveEntry]:
    """Return the valid entries, one for each key, of a file that `contents` has checked."""
    for number, line in enumerate(_lines(file), 1):
        if 1 + trailer.void < number < trailer.entries + 2:
            entry = _decoded(line, ArchiveEntry, number, f"line {number} is not an entry")
            if trailer.superseded.get(entry.key, entry.revision) == entry.revision:
                yield entry


def _lines(file: BinaryIO) -> Iterator[bytes]:
    try:
        while line := file.readline(LINE_MAX_BYTES):
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError("it is cut off or damaged: the backup is not complete") from error


def _header(line: bytes) -> Header:
    header = _decoded(line, Header, 1, "it is not a file of natsctl backup")
    if header.natsctl_backup != VERSION:
        raise UsageError(
            f"it has version {header.natsctl_backup} of the format, and this natsctl reads "
            f"version {VERSION}: use another natsctl"
        )
    return header


def _decoded(line: bytes, kind: type[T], number: int, wrong: str) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except DECODE_ERRORS as error:
        raise UsageError(f"{wrong} (line {number})") from error
