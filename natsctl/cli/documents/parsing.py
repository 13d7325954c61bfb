"""Parses JSON and YAML that users write, up to a maximum depth."""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Any

import msgspec
import yaml

from natsctl.model import exact_json
from natsctl.model.exact_json import number

NESTED_MAX = 100
"""Levels of nesting in YAML; a deeper document would exhaust the stack of libyaml."""

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _construct_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    """Return the number of a node, as an exact number if a double cannot hold it."""
    if _JSON_NUMBER.fullmatch(node.value):
        return number(node.value)
    constructed: float = loader.construct_yaml_float(node)
    return constructed


class _PreciseErrorLoader(yaml.SafeLoader):
    """Loads one document. Its errors name the line in which a fault begins."""


class _FastLoader(_Loader):  # type: ignore[misc]  # PyYAML may be built without libyaml
    """Loads many documents."""


for _class in (_PreciseErrorLoader, _FastLoader):
    _class.add_constructor("tag:yaml.org,2002:float", _construct_number)


class NestedError(yaml.YAMLError):
    """A document is nested too deeply."""


def parsed_or_none(data: bytes) -> object:
    """Return the value of JSON or YAML; None if *data* is neither."""
    with suppress(*_NO_JSON):
        return exact_json.decode(data)
    try:
        return parsed_yaml(data)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None


def parsed_yaml(data: bytes | str) -> object:
    """Return the value of one YAML document, None if *data* is empty.

    Raises `yaml.YAMLError`, also for a second document, and `UnicodeDecodeError`.
    """
    _check_nesting(data)
    return yaml.load(data, Loader=_PreciseErrorLoader)  # noqa: S506 - it is a safe loader


def documents(data: bytes) -> Iterable[object]:
    """Return the value of JSON, of each line of JSON, or of each YAML document.

    Raises as `parsed_yaml` does, also during the iteration.
    """
    with suppress(*_NO_JSON):
        return [exact_json.decode(data)]
    with suppress(*_NO_JSON):
        return exact_json.decode_lines(data)
    _check_nesting(data)
    all_documents: Iterator[object] = yaml.load_all(data, Loader=_FastLoader)
    return all_documents


def fault(data: bytes) -> str:
    """Return the reason why *data* is neither JSON nor YAML, with the line if it is known."""
    try:
        parsed_yaml(data)
    except NestedError as error:
        return str(error)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "it is not text"
        return f"{problem} in line {mark.line + 1}" if mark else problem
    return "it is not text"


def _check_nesting(data: bytes | str) -> None:
    """Raise `NestedError` for a document that is nested too deeply."""
    depths = accumulate(map(_depth_change, yaml.parse(data, Loader=_Loader)))
    try:
        nested = any(depth > NESTED_MAX for depth in depths)
    except yaml.YAMLError:
        return  # loading the document raises the same error
    if nested:
        raise NestedError(f"it is nested more than {NESTED_MAX} levels deep")


def _depth_change(event: yaml.Event) -> int:
    if isinstance(event, yaml.CollectionStartEvent):
        return 1
    return -1 if isinstance(event, yaml.CollectionEndEvent) else 0
