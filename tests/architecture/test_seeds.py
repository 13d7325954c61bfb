"""The tests that the page about other packages names exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEEDS = (ROOT / "docs" / "development" / "seeds.md").read_text()


def test_every_named_test_exists() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)", sources))
    named = set(re.findall(r"`(test_\w+)`", SEEDS))
    assert named - defined == set()
    assert len(named) > 80


def test_every_named_file_exists() -> None:
    named = re.findall(r"`(tests/[^`]+)`", SEEDS)
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert named
