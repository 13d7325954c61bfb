"""Reads the JSON and YAML that people hand to a command, within a bound on its nesting."""

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import yaml

from natsctl.errors import DECODE_ERRORS
from natsctl.model import exact_json
from natsctl.model.exact_json import number

NESTED_MAX = 100  # levels of YAML; a deeper document would exhaust the library's stack

_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _construct_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    """Return the number of a node, as it is written if a double cannot hold it."""
    if _JSON_NUMBER.fullmatch(node.value):
        return number(node.value)
    found: float = loader.construct_yaml_float(node)
    return found


class _One(yaml.SafeLoader):
    """Reads one document; its errors name the line in which the fault begins."""


class _Many(_Loader):  # type: ignore[misc]  # whichever the library was built with
    """Reads many documents, quickly."""


for _reader in (_One, _Many):
    _reader.add_constructor("tag:yaml.org,2002:float", _construct_number)


class NestedError(yaml.YAMLError):
    """A document is nested too deeply to be read."""


def parsed_or_none(data: bytes) -> object:
    """Return what JSON or YAML says; None if it is neither."""
    try:
        return exact_json.decode(data)
    except DECODE_ERRORS:
        pass
    try:
        return parsed_yaml(data)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None


def parsed_yaml(data: bytes | str) -> object:
    """Return the only document of some YAML, None if there is none.

    Raises `yaml.YAMLError`, also for a second document, and `UnicodeDecodeError`.
    """
    _check_nesting(data)
    return yaml.load(data, Loader=_One)  # noqa: S506 - it is a safe loader


def yaml_documents(data: bytes) -> Iterator[object]:
    """Return the documents of some YAML; raises as `parsed_yaml` does."""
    _check_nesting(data)
    yield from yaml.load_all(data, Loader=_Many)


def fault(data: bytes) -> str:
    """Return why *data* is neither JSON nor YAML, and in which line, in one line."""
    try:
        parsed_yaml(data)
    except NestedError as error:
        return str(error)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "it is no text"
        return f"{what} in line {where.line + 1}" if where else what
    return "it is no text"


def _check_nesting(data: bytes | str) -> None:
    """Raise `NestedError` for a document that is nested too deeply: libyaml would crash on it."""
    depths = accumulate(map(_step, yaml.parse(data, Loader=_Loader)))
    try:
        nested = any(depth > NESTED_MAX for depth in depths)
    except yaml.YAMLError:
        return  # the caller loads it and reports that
    if nested:
        raise NestedError(f"it is nested more than {NESTED_MAX} levels deep")


def _step(event: yaml.Event) -> int:
    """Return by how many levels an event goes deeper."""
    if isinstance(event, yaml.CollectionStartEvent):
        return 1
    return -1 if isinstance(event, yaml.CollectionEndEvent) else 0
