"""Reads the names of objects: `BUCKET/KEY`, or `BUCKET KEY`, in every command."""

from collections.abc import Sequence
from typing import Any

import msgspec

from natsctl.errors import UsageError
from natsctl.model.keys import check_key
from natsctl.model.kinds import Kind, KvKind

_FORMS = "write BUCKET/KEY, or BUCKET KEY"


class Name(msgspec.Struct, frozen=True):
    """An object as a person names it: a key, and the bucket or the kind that has it."""

    bucket: str
    key: str

    def within(self, bucket: str, kind: str) -> bool:
        """Return whether the name is one of that bucket, of that kind, or of the kind's type."""
        return self.bucket in {bucket, kind, kind.partition(".")[0]}

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"


def parse_names(words: Sequence[str], *, otherwise: str = "") -> list[Name]:
    """Return the objects that the words of a command name, each once.

    A slash in the first word means that every word is BUCKET/KEY. Without one, the first word is
    the bucket of the others. *otherwise* ends the error about a bucket without a key. Raises
    `UsageError`, and `InvalidKeyError` for a key that isn't legal.
    """
    if not words:
        raise UsageError(f"no object is named: {_FORMS}{otherwise}")
    if "/" in words[0]:
        names = [Name(*word.split("/", 1)) for word in words if "/" in word]
        if len(names) < len(words):
            odd = next(word for word in words if "/" not in word)
            raise UsageError(
                f"{odd!r} isn't BUCKET/KEY: after {words[0]} every object needs its bucket"
            )
    elif len(words) == 1:
        raise UsageError(f"{words[0]!r} alone names no object: {_FORMS}{otherwise}")
    else:
        names = [Name(words[0], key) for key in words[1:]]
    for name in names:
        if not name.bucket:
            raise UsageError(f"{str(name)!r} has no bucket: {_FORMS}")
        check_key(name.key)
    return list(dict.fromkeys(names))


def parse_name(words: Sequence[str]) -> Name:
    """Return the only object that the words name; raises as `parse_names` does."""
    name, *others = parse_names(words)
    if others:
        raise UsageError(f"{name} and {others[0]} are several objects: name one")
    return name


def own_keys(kinds: Sequence[Kind[Any]], names: Sequence[Name]) -> list[str]:
    """Return the keys of objects of these kinds; raises `UsageError` for any other object."""
    places = {kind.name: kind.bucket if isinstance(kind, KvKind) else "" for kind in kinds}
    for name in names:
        if not any(name.within(bucket, kind) for kind, bucket in places.items()):
            expected = ", ".join(bucket or kind for kind, bucket in places.items())
            raise UsageError(f"the controller's primaries are in {expected}: it can't have {name}")
    return [name.key for name in names]
