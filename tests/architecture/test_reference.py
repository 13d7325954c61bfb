"""The reference of Python names shows members that exist."""

import ast
import inspect
import re
from pathlib import Path

import msgspec
import pytest

import natsctl
import natsctl.testing

SITE = Path(__file__).parents[2] / "tools" / "site.py"
STRUCTS = [
    it
    for it in (getattr(natsctl, name) for name in natsctl.__all__)  # type: ignore[attr-defined]
    if inspect.isclass(it) and issubclass(it, msgspec.Struct)
]
EXPLAINED = re.compile(r"^    \w+: .*  # (?!noqa|type: )", re.MULTILINE)  # a field, in a comment


def members() -> dict[str, list[str]]:
    """Return the members that the reference shows, by class; the tool imports mkdocs."""
    tree = ast.parse(SITE.read_text())
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    code = ast.Module(
        [node for node in assigned if ast.unparse(node.targets[0]) in {"READS", "MEMBERS"}], []
    )
    namespace: dict[str, dict[str, tuple[str, ...]]] = {}
    exec(compile(code, str(SITE), "exec"), namespace)
    return {name: list(shown) for name, shown in namespace["MEMBERS"].items()}


@pytest.mark.parametrize(("name", "shown"), members().items())
def test_every_member_that_the_reference_shows_exists(name: str, shown: list[str]) -> None:
    cls = getattr(natsctl, name, None) or getattr(natsctl.testing, name)
    known = {*dir(cls), *getattr(cls, "__annotations__", {})}
    assert [member for member in shown if member not in known] == []


@pytest.mark.parametrize("struct", STRUCTS)
def test_a_public_field_is_explained_in_the_docstring_which_the_reference_shows(
    struct: type[msgspec.Struct],
) -> None:
    assert EXPLAINED.findall(inspect.getsource(struct)) == []
