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


def literals_of(file: Path) -> Iterator[str]:
    """Yield what a test may expect: its string literals, but no docstrings."""
    tree = ast.parse(file.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and id(node) not in prose:
            yield text_of(node)


def words_of(text: str) -> str:
    """Return the words with a space around each, without punctuation or escapes of a pattern."""
    words = re.sub(r"[,:;.`\\]", "", text).split()
    return f" {' '.join(words)} "


PRODUCT = {" ".join(text.split()) for text in messages() if len(text) > 8}
TRANSCRIPTS = (ROOT / "tests" / "acceptance" / "transcripts").glob("*.md")
TESTS = "\n".join(
    words_of(text)
    for texts in (
        *(
            literals_of(file)
            for file in (ROOT / "tests").rglob("*.py")
            if not file.is_relative_to(ROOT / "tests" / "architecture")
        ),
        *(file.read_text().splitlines() for file in TRANSCRIPTS),
    )
    for text in texts
)


def phrases(row: str) -> set[str]:
    """Return the runs of four words in the fixed parts of a message, or the longest part."""
    parts = [words for part in row.split(ANY) if (words := words_of(part).split())]
    longest = max(len(words) for words in parts)
    size = min(4, longest)
    return {
        f" {' '.join(words[at : at + size])} "
        for words in parts
        for at in range(len(words) - size + 1)
    }


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
