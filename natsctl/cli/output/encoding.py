"""JSON and YAML text of what a command has found: exact, and safe on a terminal."""

from typing import Any

import msgspec
import yaml

from natsctl.model import exact_json
from natsctl.model.exact_json import ExactNumber
from natsctl.telemetry.escaping import is_unsafe, json_escaped, yaml_escaped

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Quoting(_Dumper):  # type: ignore[misc]  # whichever the library was built with
    """Writes text with unsafe characters in double quotes, in which YAML has escapes."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Return the node of a text."""
        style = '"' if is_unsafe(text) else None
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node

    def represent_exact(self, exact: ExactNumber) -> yaml.ScalarNode:
        """Return the node of a number that a double cannot hold."""
        node: yaml.ScalarNode = self.represent_scalar("tag:yaml.org,2002:float", exact.text)
        return node


_Quoting.add_representer(str, _Quoting.represent_text)
_Quoting.add_representer(ExactNumber, _Quoting.represent_exact)


def json_text(found: object, *, indent: int = 2) -> str:
    """Return the JSON of *found*; an indent below 0 keeps it on one line."""
    encoded = exact_json.encode(found)
    return json_escaped((encoded if indent < 0 else formatted(encoded, indent)).decode())


def yaml_text(found: object) -> str:
    """Return the YAML of *found*, which is made of lists, dicts and scalars.

    A value that is nested too deeply for the YAML library is written as JSON, which is YAML too.
    """
    try:
        dumped = yaml.dump(found, Dumper=_Quoting, sort_keys=False, allow_unicode=True)
    except RecursionError:
        return json_text(found, indent=-1)
    return yaml_escaped(dumped.rstrip("\n"))


def formatted(encoded: bytes, indent: int) -> bytes:
    """Return JSON with line breaks; JSON that is nested too deeply for that stays on one line."""
    try:
        return msgspec.json.format(encoded, indent=indent)
    except RecursionError:
        return encoded
