"""The sample of mutants is of code that exists, and each survivor has a reason."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROWS: list[dict[str, Any]] = json.loads((ROOT / "tests" / "mutants.json").read_text())
GONE_MAX = 40  # of 400; when more have changed, draw others: tools/mutants.py --draw 400


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return the qualified names of classes and functions, and their code."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{prefix}.{child.name}".lstrip(".")
            yield name, " ".join(ast.unparse(child).split())
        yield from functions(child, name)


def test_the_sample_is_of_code_that_exists() -> None:
    codes: dict[str, dict[str, str]] = {}
    for module in {row["module"] for row in ROWS}:
        path = ROOT / module
        codes[module] = dict(functions(ast.parse(path.read_text()))) if path.exists() else {}
    gone = []
    for row in ROWS:
        original = " ".join(row["mutant"].split("`")[1].split())
        if original not in codes[row["module"]].get(row["function"], ""):
            gone.append(f"{row['module']} {row['function']}: {original}")
    assert len(ROWS) == 400
    assert len(gone) <= GONE_MAX, gone


def test_a_mutant_that_lives_has_a_reason_or_is_to_be_judged() -> None:
    assert all(row.get("why") for row in ROWS if row["killed_by"] is None)
