"""Tests stand where users stand: on public names, the Store protocol and the command line.

A test that imports an inner module breaks when that module moves, whether or not anything is
wrong. So the number of such files may only fall.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
SEAMS = {
    *("natsctl", "natsctl.errors", "natsctl.testing", "natsctl.model.store"),
    "natsctl.cli.main",  # the command line
    *("natsctl.watchers", "natsctl.resource", "natsctl.dynamic", "natsctl.managed"),
    # algorithms with a suite of their own
    *("natsctl.core.workqueue", "natsctl.core.table", "natsctl.core.writes"),
    *(f"natsctl.core.coordination.{module}" for module in ("lease", "shares", "term")),
    *("natsctl.jetstream.watch", "natsctl.jetstream.reader"),
}
INNER_MAX = 85


def test_few_files_import_inner_modules() -> None:
    inner = [str(file) for file in sorted(TESTS.rglob("*.py")) if set(_imported(file)) - SEAMS]
    assert len(inner) <= INNER_MAX, "import public names, or test through them"
    assert len(inner) == INNER_MAX, f"INNER_MAX can be {len(inner)} now"


def _imported(file: Path) -> Iterator[str]:
    """Return the modules of natsctl that a file imports."""
    for node in _statements(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == "natsctl")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Return the statements in a node at any depth, but no expressions, which are most nodes."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for statement in getattr(node, field, ()):
            yield statement
            yield from _statements(statement)
