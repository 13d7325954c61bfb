"""The page about errors has messages that natsctl prints, and that a test reaches."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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
    prose = set[int]()
    for node in ast.walk(ast.parse(file.read_text())):  # it yields a statement before its value
        if isinstance(node, ast.Expr):
            prose.add(id(node.value))
        elif isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and id(node) not in prose:
            yield text_of(node)


def words_of(text: str) -> str:
    """Return the words with a space around each, without punctuation or escapes of a pattern."""
    words = re.sub(r"[,:;.`\\]", "", text).split()
    return f" {' '.join(words)} "


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


def test_natsctl_has_each_message() -> None:
    product = {" ".join(text.split()) for text in messages() if len(text) > 8}
    patterns = {
        row: re.compile(".*".join(re.escape(part) for part in row.split(ANY))) for row in ROWS
    }
    assert [row for row in ROWS if not any(map(patterns[row].match, product))] == []


def test_a_test_reaches_each_message() -> None:
    tests = ROOT / "tests"
    transcripts = (tests / "acceptance" / "transcripts").glob("*.md")
    architecture = tests / "architecture"
    programs = (path for path in tests.rglob("*.py") if not path.is_relative_to(architecture))
    texts = (
        *(text for program in programs for text in literals_of(program)),
        *(line for transcript in transcripts for line in transcript.read_text().splitlines()),
    )
    expected = "\n".join(map(words_of, texts))
    assert [row for row in ROWS if not any(phrase in expected for phrase in phrases(row))] == []


def test_the_page_has_every_exception() -> None:
    listed = set(re.findall(r"`(\w+)`", PAGE))
    public = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert public - listed == set()
