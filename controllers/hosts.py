"""Hosts: keeps a block of a hosts file equal to a bucket.

The key of an object is the name of a host. The block stands between two marks, and the rest of the
file stays as it is. A host with an invalid name or address gets no line; all others do.

Run it:       HOSTS_FILE=/etc/hosts natsctl run --controller controllers.hosts:Hosts
A host:       natsctl put hosts gw.berlin '{"spec": {"address": "10.1.0.1", "aliases": ["gw"]}}'
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import msgspec

from natsctl import (
    Event,
    EventKind,
    Object,
    PermanentError,
    Resource,
    StoppedError,
    Stores,
    UsageError,
    kv,
)

BEGIN = "# natsctl hosts: the lines from here to the end come from a bucket"
END = "# natsctl hosts: the end"

_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


class HostSpec(msgspec.Struct, frozen=True):
    """The address of a host, and its other names."""

    address: str
    aliases: tuple[str, ...] = ()


class Host(Object, frozen=True):
    """A host that the file should list."""

    spec: HostSpec


HOSTS = kv(Host, bucket="hosts")


class Hosts:
    """Keeps a block of a hosts file equal to a bucket.

    The file is written once all hosts are known, and then after each change. A change counts as
    handled when it is in the file; a failed write is retried.
    """

    name = "hosts"
    kinds = (HOSTS,)

    def __init__(self, path: Path | None = None) -> None:
        path = Path(os.environ.get("HOSTS_FILE", "hosts")) if path is None else path
        self.path = path.resolve()
        self.synced = asyncio.Event()  # the file equals the bucket
        self._lines: dict[str, str] = {}
        self._complete = False
        self._resource: Resource[Host] | None = None

    def use(self, *, nats: Stores | None = None, kube: Stores | None = None) -> None:  # noqa: ARG002 - hosts are in NATS
        """Set the store of the hosts; `natsctl run` calls it."""
        if nats is not None:
            self._resource = Resource(HOSTS, nats)

    async def run(self) -> None:
        """Follow the bucket until `stop`."""
        if self._resource is None:
            raise UsageError("hosts are kept in NATS: call use(nats=...) first")
        with suppress(StoppedError):
            async with self._resource, self._resource.events() as events:
                async for event in events:
                    async with event:
                        self._handle(event)

    def stop(self) -> None:
        """End `run`; the file stays as it is."""
        if self._resource is not None:
            self._resource.stop()

    def _handle(self, event: Event[Host]) -> None:
        """Apply an event to the file."""
        try:
            self._update_lines(event)
        finally:
            if self._complete:
                self._write()
                self.synced.set()

    def _update_lines(self, event: Event[Host]) -> None:
        match event.kind:
            case EventKind.SYNC:
                self._complete = True
            case EventKind.DELETE:
                self._lines.pop(event.key, None)
            case EventKind.UPSERT:
                self._lines.pop(event.key, None)
                self._lines[event.key] = line(event.key, event.object.spec)

    def _write(self) -> None:
        present = self.path.read_bytes() if self.path.exists() else b""
        block = [self._lines[key] for key in sorted(self._lines)]
        try:
            wanted = with_block(present.decode(errors="surrogateescape"), block)
        except UsageError as error:
            raise UsageError(f"{self.path}: {error}") from None
        content = wanted.encode(errors="surrogateescape")
        if content != present:
            replace(self.path, content)


def line(key: str, spec: HostSpec) -> str:
    """Return the line of a host; raises `PermanentError` if a name or the address is invalid."""
    names = (key, *spec.aliases)
    for name in names:
        if not _NAME.fullmatch(name):
            raise PermanentError(f"{name!r} is not a valid host name")
    try:
        address = str(ip_address(spec.address))
    except ValueError:
        raise PermanentError(f"{spec.address!r} is not a valid address") from None
    if "%" in address:
        raise PermanentError(f"{spec.address!r} has a zone, which other hosts cannot use")
    return f"{address}\t{' '.join(names)}"


def with_block(text: str, block: Iterable[str]) -> str:
    """Return the text with the block replaced, or appended if there is none.

    Raises `UsageError` if the marks do not enclose exactly one block.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    marks = [number for number, entry in enumerate(lines) if entry in {BEGIN, END}]
    first, last = (marks[0], marks[-1]) if marks else (len(lines), len(lines))
    if marks and [lines[number] for number in marks] != [BEGIN, END]:
        raise UsageError("the marks of natsctl's block are not one pair: remove the extra marks")
    wanted = (*lines[:first], BEGIN, *block, END, *lines[last + 1 :])
    return "".join(f"{entry}\n" for entry in wanted)


def replace(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically, also across a power failure; keep its mode."""
    prefix = f".{path.name}."
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, delete=False) as file:
        new = Path(file.name)
        try:
            file.write(content)
            _copy_mode(path, new)
            file.flush()
            os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink()
            raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy_mode(old: Path, new: Path) -> None:
    if not old.exists():
        new.chmod(0o644)
        return
    shutil.copymode(old, new)
    with suppress(PermissionError):  # only root may change the owner
        os.chown(new, old.stat().st_uid, old.stat().st_gid)
