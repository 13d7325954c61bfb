"""Parses JSON and YAML that users write, up to a maximum depth and without repeated fields."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Any

import msgspec
import yaml
from yaml.constructor import ConstructorError

from natsctl.model import exact_json
from natsctl.model.exact_json import number

NESTED_MAX = 100
"""Levels of nesting in YAML; a deeper document would exhaust the stack of libyaml."""

_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_SURROGATE = re.compile("[\ud800-\udfff]")


def _construct_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    """Return the number of a node, as an exact number if a double cannot hold it."""
    if _JSON_NUMBER.fullmatch(node.value):
        return number(node.value)
    constructed: float = loader.construct_yaml_float(node)
    return constructed


class _Strict:
    """Makes a loader reject a mapping with a repeated field, and text that is not Unicode."""

    def construct_document(self, node: yaml.Node) -> object:
        _check_fields(node, set())
        return super().construct_document(node)  # type: ignore[misc]  # that of the loader

    def construct_scalar(self, node: Any) -> Any:
        if _SURROGATE.search(node.value):
            problem = "found half of a surrogate pair, which is not a character"
            raise ConstructorError(None, None, problem, node.start_mark)
        return super().construct_scalar(node)  # type: ignore[misc]  # that of the loader


class _PreciseErrorLoader(_Strict, yaml.SafeLoader):
    """Loads one document. Its errors name the line in which a fault begins."""


class _FastLoader(_Strict, _Loader):  # type: ignore[misc]  # PyYAML may be built without libyaml
    """Loads many documents."""


for _class in (_PreciseErrorLoader, _FastLoader):
    _class.add_constructor("tag:yaml.org,2002:float", _construct_number)


class NestedError(yaml.YAMLError):
    """A document is nested too deeply."""


class RepeatedFieldError(yaml.YAMLError):
    """A JSON object has a field twice."""


def parsed_or_none(data: bytes) -> object:
    """Return the value of JSON or YAML; None if *data* is neither."""
    try:
        with suppress(*_NO_JSON):
            return _parsed_json(data)
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
        return [_parsed_json(data)]
    with suppress(*_NO_JSON):
        lines = exact_json.decode_lines(data)
        for line in data.splitlines():
            _check_json_fields(line)
        return lines
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


def _parsed_json(data: bytes) -> object:
    value = exact_json.decode(data)
    _check_json_fields(data)
    return value


def _check_json_fields(data: bytes) -> None:
    """Raise `RepeatedFieldError` if an object in valid JSON has a field twice."""
    if data.strip():
        json.loads(data, object_pairs_hook=_check_names, parse_int=str, parse_float=str)


def _check_names(fields: list[tuple[str, object]]) -> None:
    names = set[str]()
    for name, _ in fields:
        if name in names:
            raise RepeatedFieldError(f"found the field {name!r} twice")
        names.add(name)


def _check_fields(node: yaml.Node, checked: set[int]) -> None:
    """Raise `ConstructorError` if a mapping in the node has a field twice.

    Skips the nodes in *checked*, because an alias may contain its own anchor.
    """
    if id(node) in checked or isinstance(node, yaml.ScalarNode):
        return
    checked.add(id(node))
    names = set[tuple[str, str]]()
    for child in node.value:
        name, value = child if isinstance(node, yaml.MappingNode) else (None, child)
        if isinstance(name, yaml.ScalarNode):
            if (name.tag, name.value) in names:
                problem = f"found the field {name.value!r} twice"
                raise ConstructorError(None, None, problem, name.start_mark)
            names.add((name.tag, name.value))
        _check_fields(value, checked)


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
