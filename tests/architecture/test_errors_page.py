"""The page about errors has messages that natsctl prints, and that a test reaches."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from natsctl import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text()
ANY = "…"
ROWS = re.findall(
    r"^\| `([^`\n]*(?:``[^`\n]*)*)` \|", PAGE.partition("## The exceptions")[0], re.MULTILINE
)


def text_of(node: ast.expr) -> str:
    """Return the text of a literal, with … for what is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(value) for value in values)
        case ast.BinOp(left=left, right=right):
            return text_of(left) + text_of(right)
        case _:
            return ANY


def messages() -> Iterator[str]:
    """Yield the text of each literal of the product, longest first within a concatenation."""
    for file in (ROOT / "natsctl").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                yield text_of(node)


PRODUCT = {" ".join(text.split()) for text in messages() if len(text) > 8}
TESTS = " ".join(
    " ".join(file.read_text().split())
    for file in (ROOT / "tests").rglob("*.py")
    if file.name != Path(__file__).name
)
TESTS = re.sub(r"[,:;.`]", "", re.sub(r'" f?"', "", TESTS))  # a text over several lines


def phrases(row: str) -> set[str]:
    """Return the runs of three words in the fixed parts of a message, or a shorter part."""
    parts = [re.sub(r"[,:;.`]", "", part).split() for part in row.split(ANY)]
    runs = [words[at : at + 3] for words in parts for at in range(max(1, len(words) - 2))]
    return {" ".join(run) for run in runs if len(run) > 1}


def test_the_page_has_messages() -> None:
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS)
def test_natsctl_has_the_message(row: str) -> None:
    pattern = re.compile(".*".join(re.escape(part) for part in row.split(ANY)))
    assert any(pattern.match(text) for text in PRODUCT)


@pytest.mark.parametrize("row", ROWS)
def test_a_test_reaches_the_message(row: str) -> None:
    assert any(phrase in TESTS for phrase in phrases(row)), phrases(row)


def test_the_page_has_every_exception() -> None:
    listed = set(re.findall(r"`(\w+)`", PAGE))
    public = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert public - listed == set()
