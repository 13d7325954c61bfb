"""Links and names of modules in the documentation are valid."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
README = (ROOT / "README.md").read_text()


def links(page: Path) -> Iterator[str]:
    """Yield the links of a page to files of the project."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http:", "https:")):
            yield target


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub derives them from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_the_readme_links_to_every_page(page: Path) -> None:
    assert f"(docs/{page.name})" in README


@pytest.mark.parametrize("page", [DOCS / "ARCHITECTURE.md", *sorted((DOCS / "adr").glob("*.md"))])
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", page.read_text())
    assert [name for name in named if not (ROOT / "natsctl" / name).exists()] == []


def test_the_architecture_page_has_at_most_150_lines() -> None:
    assert (DOCS / "ARCHITECTURE.md").read_text().count("\n") <= 150
