"""Hosts: a hosts file says what a bucket says.

The key is a host's name. What the file says outside of the block between two marks is left alone.
A host without a usable name or address has no line, and harms no other.

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

BEGIN = "# natsctl hosts: what is between here and the end comes from a bucket"
END = "# natsctl hosts: the end"

_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(\.{_LABEL})*")


class HostSpec(msgspec.Struct, frozen=True):
    """Where a host is, and what else it is called."""

    address: str
    aliases: tuple[str, ...] = ()


class Host(Object, frozen=True):
    """A host that should be found by its name."""

    spec: HostSpec


HOSTS = kv(Host, bucket="hosts")


class Hosts:
    """Keeps a block of a hosts file equal to a bucket.

    The file is written when every host is known, and then with every change, before that counts as
    handled: what could not be written is tried again.
    """

    name = "hosts"
    kinds = (HOSTS,)

    def __init__(self, path: Path | None = None) -> None:
        path = Path(os.environ.get("HOSTS_FILE", "hosts")) if path is None else path
        self.path = path.resolve()
        self.synced = asyncio.Event()  # the file says what the bucket says
        self._lines: dict[str, str] = {}
        self._complete = False
        self._resource: Resource[Host] | None = None

    def use(self, *, nats: Stores | None = None, kube: Stores | None = None) -> None:  # noqa: ARG002 - hosts are in NATS
        """Take the hosts from there."""
        if nats is not None:
            self._resource = Resource(HOSTS, nats)

    async def run(self) -> None:
        """Follow the bucket until `stop`."""
        if self._resource is None:
            raise UsageError("hosts are kept in NATS: use(nats=...) says where")
        with suppress(StoppedError):
            async with self._resource, self._resource.events() as events:
                async for event in events:
                    async with event:
                        self._take(event)

    def stop(self) -> None:
        """Have `run` return; the file stays as it is."""
        if self._resource is not None:
            self._resource.stop()

    def _take(self, event: Event[Host]) -> None:
        """Let the file say what the event says."""
        try:
            self._note(event)
        finally:
            if self._complete:
                self._write()
                self.synced.set()

    def _note(self, event: Event[Host]) -> None:
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
    """Return a host's line; raises `PermanentError` where a name or the address is none."""
    names = (key, *spec.aliases)
    for name in names:
        if not _NAME.fullmatch(name):
            raise PermanentError(f"{name!r} is no name of a host")
    try:
        address = str(ip_address(spec.address))
    except ValueError:
        raise PermanentError(f"{spec.address!r} is no address") from None
    if "%" in address:
        raise PermanentError(f"{spec.address!r} has a zone, which means nothing elsewhere")
    return f"{address}\t{' '.join(names)}"


def with_block(text: str, block: Iterable[str]) -> str:
    """Return the text with the lines between the marks replaced, or added at its end.

    Raises `UsageError` where the marks are not one block.
    """
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    marks = [number for number, each in enumerate(lines) if each in {BEGIN, END}]
    first, last = (marks[0], marks[-1]) if marks else (len(lines), len(lines))
    if marks and [lines[number] for number in marks] != [BEGIN, END]:
        raise UsageError("the marks of natsctl's block are not one pair: remove what is too much")
    wanted = (*lines[:first], BEGIN, *block, END, *lines[last + 1 :])
    return "".join(f"{each}\n" for each in wanted)


def replace(path: Path, content: bytes) -> None:
    """Replace a file: all of it or nothing, even if the power fails. Its rights stay."""
    prefix = f".{path.name}."
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, delete=False) as file:
        new = Path(file.name)
        try:
            file.write(content)
            _keep_rights(path, new)
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


def _keep_rights(old: Path, new: Path) -> None:
    if not old.exists():
        new.chmod(0o644)
        return
    shutil.copymode(old, new)
    with suppress(PermissionError):  # only root may give a file away
        os.chown(new, old.stat().st_uid, old.stat().st_gid)
