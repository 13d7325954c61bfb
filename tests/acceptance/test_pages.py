"""The pages of the documentation: what they tell to type works, and answers what they show."""

from pathlib import Path

import pytest

from tests.support.cli.doc_page import Saved, Shown, Step, ports, steps
from tests.support.cli.doc_reader import Reader
from tests.support.cli.natsctl_command import ROOT
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

DOCS = ROOT / "docs"
PAGES = [page for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if steps(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_what_a_page_tells_to_type_answers_what_it_shows(
    page: Path, folder: Path, nats_server: NatsServer
) -> None:
    free = {port: free_port() for port in ports(page)}
    async with Reader(folder, nats_server.url, free) as reader:
        for step in steps(page):
            await reader.does(step)


@pytest.mark.parametrize("name", ["README", "first-controller", "production", "upgrade", "debug"])
def test_the_page_of_every_task_is_among_them(name: str) -> None:
    page = next(page for page in PAGES if page.stem == name)
    assert len(steps(page)) >= 8


def page(tmp_path: Path, text: str) -> list[Step]:
    file = tmp_path / "page.md"
    file.write_text(text)
    return steps(file)


def test_a_page_s_commands_and_their_output_are_told_apart(tmp_path: Path) -> None:
    text = "Type:\n\n```console\n$ one\na\n\nb\n$ two\n```\n\n```toml\n$ three\n```\n"
    more = "```console\n$ four\nc\n```\n"
    assert page(tmp_path, text + more) == [
        Shown(4, "one", "a\n\nb"),
        Shown(8, "two", ""),
        Shown(15, "four", "c"),
    ]


@pytest.mark.parametrize(
    ("shown", "output", "answered"),
    [
        ("", "", True),
        ("", "something", False),
        ("a", "a\n", True),
        ("a", "a\nb\n", False),
        ("a … c", "a b c\n", True),
        ("a … c", "a b d\n", False),
        ("a\n…", "a\nb\nc\n", True),
        ("a\n…", "a\n", True),
        ("…\nc", "a\nb\nc", True),
        ("…\nc", "c", True),
        ("…\nc", "a\ncd", False),
        ("a\n…\nc\n…", "a\nb\nc\nd\n", True),
        ("a.b", "axb", False),
    ],
)
def test_what_is_shown_is_what_is_answered(shown: str, output: str, *, answered: bool) -> None:
    assert Shown(1, "natsctl", shown).answered_by(output) is answered


def test_a_command_that_goes_on_has_said_what_is_shown_in_that_order() -> None:
    shown = Shown(1, "natsctl run", "… one\ntwo …")
    assert shown.begun_by("12:00 one\nbetween\ntwo 3\nafter\n")
    assert not shown.begun_by("two 3\n12:00 one\n")


def test_only_what_looks_is_typed_again() -> None:
    for command, looking in (("natsctl list a", True), ("natsctl apply -f a", False)):
        assert Shown(1, command, "").looking is looking


def test_what_runs_until_told_to_stop_has_a_terminal_of_its_own() -> None:
    for command, lasting in (
        ("natsctl run -c a:B", True),
        ("cd new && natsctl run -c a:B", True),
        ("natsctl resync", False),
    ):
        assert Shown(1, command, "").lasting is lasting


def test_a_block_that_names_a_file_is_to_be_saved(tmp_path: Path) -> None:
    text = "```toml natsctl.toml\n[http]\nlisten = 1\n```\n\n```console\n$ one\n```\n"
    assert page(tmp_path, text) == [
        Saved(2, "natsctl.toml", "[http]\nlisten = 1\n"),
        Shown(7, "one", ""),
    ]


def test_a_command_is_ended_where_it_was_typed() -> None:
    shown = Shown(1, "natsctl run", "^C\n… stopping; …")
    assert shown.ending
    assert shown.begun_by("12:00 stopping; once more\n")
    assert not shown.begun_by("^C\n")
    assert not Shown(1, "natsctl run", "… syncing").ending


def test_ports_that_readers_listen_on_are_found(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("curl :8081/livez, 127.0.0.1:8080, 80801, :4222")
    assert ports(file) == ["8080", "8081"]
