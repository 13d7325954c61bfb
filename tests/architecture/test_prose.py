"""Checks that docs, docstrings, comments, configuration and test names are plain English.

`make lint` runs this file. The rules find the most frequent mistakes, not all of them;
CONTRIBUTING.md describes the style.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
WORDS_MIN = 4  # shorter sentences are labels

DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
MODULES = [
    path for folder in ("natsctl", "controllers", "tests") for path in (ROOT / folder).rglob("*.py")
]
CONFIGURATION = [
    *(ROOT / name for name in (".ci/run", ".dockerignore", "Dockerfile", "Makefile")),
    *(path for suffix in ("toml", "yml") for path in ROOT.glob(f"*.{suffix}")),
    *(path for suffix in ("json", "toml", "yaml", "yml") for path in DOCS.rglob(f"*.{suffix}")),
    *(ROOT / "natsctl" / "console" / "page").rglob("*.js"),
]

_COMMENT = re.compile(r"(?:^\s*|  )# (?!noqa|type:)(.*)")
_TEST = re.compile(r"\s*(?:async )?def (test_\w*)")
_COMMENT_OR_VALUE = re.compile(
    r"""(?:^|\s)(?://|\#+|/?\*\*?)\s(?P<comment>.*?)(?:\*/)?$
    | \b(?:description|summary|title)"?\s*[:=]\s*"?(?P<value>.+?)"?,?$""",
    re.VERBOSE,
)


class Sentence(NamedTuple):
    line: int
    text: str


class Rule(NamedTuple):
    mistake: re.Pattern[str]
    advice: str


RULES = (
    Rule(
        re.compile(r"^(Who|Whoever|Whom|What|Whatever|Which|Where|Whether|That|Nobody|How)\b"),
        "start with the subject, or make it a question",
    ),
    Rule(
        re.compile(r"\b(whoever|whom|anew|thereby|by now|be it|has it that)\b", re.IGNORECASE),
        "use the words of the Kubernetes docs",
    ),
    Rule(
        re.compile(r"\b(to be|is|are|was|were) told\b|\btells? of\b", re.IGNORECASE),
        "use report, notify, log or set",
    ),
    Rule(
        re.compile(r"\bwhere (there )?(is|are) (none|no|nothing|one|some)\b", re.IGNORECASE),
        "use a condition with 'if'",
    ),
    Rule(
        re.compile(r"\b(says?|said|told|tells?) (why|which|what|so|that|it|them|us|you|more)\b"),
        "use log, report, show or state",
    ),
    Rule(re.compile(r"\bas it is there\b|\bof its own\b", re.IGNORECASE), "name the thing"),
    Rule(
        re.compile(
            r"\bwhat (is|was|came|comes|went|goes|it|they|we|nobody|somebody)\b"
            r"|\bwho (is|was|has|had|gets|comes|goes|waits|asks)\b",
            re.IGNORECASE,
        ),
        "name the thing or the person",
    ),
)

NAME_RULES = (
    Rule(
        re.compile(r"^test_(what|who|whoever|whatever|which|where|how|nobody|nor|so|of)_"),
        "start with the subject",
    ),
    Rule(
        re.compile(r"_(told|tells?|said|says?|say|whom|whoever|anew|by_now|left_alone)(_|$)"),
        "use report, notify, log, set or 'again'",
    ),
    Rule(re.compile(r"_where_(there_)?(is|are)_|_that_is_none(_|$)"), "use a condition with 'if'"),
)


def sentences(path: Path) -> Iterator[Sentence]:
    """Return the sentences of a page, of a module's docstrings and comments, or of another file."""
    match path.suffix:
        case ".md":
            texts = (*_paragraphs(path), *_cells(path))
        case ".py":
            texts = (*_docstrings(path), *_comments(path))
        case _:
            texts = tuple(_comments_and_values(path))
    for line, text in texts:
        for sentence in re.split(r"(?<=[.;:!?])\s+", re.sub(r"\s+", " ", text)):
            if len(sentence.split()) >= WORDS_MIN and not sentence.endswith("?"):
                yield Sentence(line, sentence)


def _paragraphs(path: Path) -> Iterator[Sentence]:
    is_code, lines, start = False, list[str](), 1
    for number, line in enumerate([*path.read_text().splitlines(), ""], 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and line.strip() and not line.startswith(("|", "#")):
            start = start if lines else number
            lines.append(line)
        elif lines:
            yield Sentence(start, " ".join(lines))
            lines = []


def _cells(path: Path) -> Iterator[Sentence]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("|"):
            yield from (Sentence(number, cell.strip()) for cell in line.split("|"))


def _comments_and_values(path: Path) -> Iterator[Sentence]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if text := _COMMENT_OR_VALUE.search(line):
            yield Sentence(number, text["comment"] or text["value"] or "")


def _statements(path: Path) -> Iterator[ast.AST]:
    """Return the module and all its statements, without their expressions, which are many more."""
    remaining: list[ast.AST] = [ast.parse(path.read_text())]
    while remaining:
        node = remaining.pop()
        yield node
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            remaining += getattr(node, field, ())


def _docstrings(path: Path) -> Iterator[Sentence]:
    for node in _statements(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Sentence(node.body[0].lineno, text)


def _comments(path: Path) -> Iterator[Sentence]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if "# " in line and (comment := _COMMENT.search(line)):
            yield Sentence(number, comment[1])


def _test_names(path: Path) -> Iterator[Sentence]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if name := _TEST.match(line):
            yield Sentence(number, name[1])


def _mistakes(path: Path, sentences: Iterator[Sentence], rules: tuple[Rule, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line}: {text[:120]} ({rule.advice})"
        for line, text in sentences
        for rule in rules
        if rule.mistake.search(text)
    ]


@pytest.mark.parametrize(
    "paths", [PAGES, MODULES, CONFIGURATION], ids=["pages", "modules", "configuration"]
)
def test_sentences_are_plain(paths: list[Path]) -> None:
    mistakes = [line for path in paths for line in _mistakes(path, sentences(path), RULES)]
    assert not mistakes, "\n".join(mistakes)


def test_test_names_are_plain() -> None:
    paths = (ROOT / "tests").rglob("test_*.py")
    mistakes = [line for path in paths for line in _mistakes(path, _test_names(path), NAME_RULES)]
    assert not mistakes, "\n".join(mistakes)


def test_the_rules_find_a_mistake_in_each_kind_of_text(tmp_path: Path) -> None:
    module, page, rules = (tmp_path / name for name in ("module.py", "page.md", "rules.yml"))
    module.write_text('"""Whoever reads this is told of it."""\nx = 1\n# what it is nobody knows\n')
    page.write_text("# Title\n\nWhere there is none, nothing is done.\n\n| Who waits is served |\n")
    rules.write_text('# The log says why it fails\ndescription: "Whether the connection stands"\n')
    for path in (module, page, rules):
        texts = [sentence.text for sentence in sentences(path)]
        assert texts
        assert all(any(rule.mistake.search(text) for rule in RULES) for text in texts)
