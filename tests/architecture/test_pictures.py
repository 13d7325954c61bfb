"""The pictures of the documentation match their sources."""

import re
from pathlib import Path

import pytest

from tools.pictures import PICTURES, draw

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("source", sorted(PICTURES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_picture_is_drawn_from_its_source(source: Path) -> None:
    assert source.with_suffix(".svg").read_text() == draw(source.read_text()), "make pictures"


def test_every_picture_is_shown_on_a_page() -> None:
    pages = "\n".join(page.read_text() for page in DOCS.rglob("*.md"))
    shown = set(re.findall(r"pictures/([\w-]+)\.svg", pages))
    assert {source.stem for source in PICTURES.glob("*.toml")} - shown == set()
