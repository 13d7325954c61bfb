"""The reference of Python names shows members that exist."""

import ast
from pathlib import Path

import pytest

import natsctl
import natsctl.testing

SITE = Path(__file__).parents[2] / "tools" / "site.py"


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
