"""Finds the keys of objects by the values that a function returns for them."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Generic, TypeVar

from natsctl.errors import InvalidObjectError
from natsctl.split_dict import SplitDict

T = TypeVar("T")
IndexFunc = Callable[[T], Iterable[str]]


class Index(Generic[T]):
    """The keys of objects by their values.

    To save memory, a value of one key takes no set, and a key of one value takes no tuple.
    """

    def __init__(self, name: str, func: IndexFunc[T]) -> None:
        self._name = name
        self._func = func
        self._keys = SplitDict[str | set[str]]()  # one key, or several
        self._values = SplitDict[str | tuple[str, ...]]()  # one value, or several

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def empty(self) -> "Index[T]":
        """Return an index of the same name and function, without keys."""
        return Index(self._name, self._func)

    def keys(self, value: str) -> Collection[str]:
        """Return the keys of the objects with this value."""
        keys = self._keys.get(value, ())
        return (keys,) if isinstance(keys, str) else keys

    def values(self) -> SplitDict[str | set[str]]:
        """Return all values; a live view."""
        return self._keys

    def values_at(self, key: str) -> tuple[str, ...]:
        """Return the values of the object at *key*."""
        values = self._values.get(key, ())
        return (values,) if isinstance(values, str) else values

    def values_of(self, obj: T) -> tuple[str, ...]:
        """Return the object's values; raises `InvalidObjectError` if the function fails."""
        try:
            return tuple(dict.fromkeys(self._func(obj)))
        except (Exception, SystemExit) as error:  # the function is a user's
            raise InvalidObjectError(f"index {self._name} fails: {error!r}") from error

    def put(self, key: str, values: tuple[str, ...]) -> None:
        """Replace the values of the object at *key*."""
        before = self.values_at(key)
        if values == before:
            return
        if before:
            self.remove(key)
        if len(values) == 1 and isinstance(values[0], str):
            value = key if values[0] == key else values[0]  # one text, if both are equal
            self._values[key], values = value, (value,)
        elif values:
            self._values[key] = values
        for value in values:
            keys = self._keys.get(value)
            if keys is None:
                self._keys[value] = key
            elif isinstance(keys, set):
                keys.add(key)
            elif keys != key:
                self._keys[value] = {keys, key}

    def remove(self, key: str) -> None:
        """Remove the values of the object at *key*."""
        values = self.values_at(key)
        self._values.pop(key)
        for value in values:
            keys = self._keys[value]
            if isinstance(keys, set) and len(keys) > 1:
                keys.discard(key)
            else:
                self._keys.pop(value)

    def drain(self) -> Iterator[None]:
        """Remove the objects and values, one by one, of an index that nothing reads any more."""
        yield from self._values.drain()
        yield from self._keys.drain()
