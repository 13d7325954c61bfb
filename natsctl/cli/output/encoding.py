"""Encodes a result as JSON or YAML that keeps every digit and is safe on a terminal."""

from typing import Any

import msgspec
import yaml

from natsctl.model import exact_json
from natsctl.model.exact_json import ExactNumber
from natsctl.telemetry.escaping import is_unsafe, json_escaped, yaml_escaped

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _ExactDumper(_Dumper):  # type: ignore[misc]  # PyYAML may be built without libyaml
    """Writes exact numbers, and unsafe characters as escapes in double quotes."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        style = '"' if is_unsafe(text) else None
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node

    def represent_exact(self, exact: ExactNumber) -> yaml.ScalarNode:
        """Return the node of a number that a double cannot hold."""
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:float", exact.text)
        return node


_ExactDumper.add_representer(str, _ExactDumper.represent_text)
_ExactDumper.add_representer(ExactNumber, _ExactDumper.represent_exact)


def json_text(value: object, *, indent: int = 2) -> str:
    """Return the JSON of a value; a negative indent gives one line."""
    encoded = exact_json.encode(value)
    return json_escaped((encoded if indent < 0 else _formatted(encoded, indent)).decode())


def yaml_text(value: object) -> str:
    """Return the YAML of lists, dicts and scalars.

    A value that is nested too deeply for the YAML library is written as JSON, which is valid YAML.
    """
    try:
        dumped = yaml.dump(value, Dumper=_ExactDumper, sort_keys=False, allow_unicode=True)
    except RecursionError:
        return json_text(value, indent=-1)
    return yaml_escaped(dumped.rstrip("\n"))


def _formatted(encoded: bytes, indent: int) -> bytes:
    """Return JSON with line breaks; JSON that is nested too deeply stays on one line."""
    try:
        return msgspec.json.format(encoded, indent=indent)
    except RecursionError:
        return encoded
