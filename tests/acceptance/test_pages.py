"""The commands of the documentation work, and print the output that the pages show."""

from pathlib import Path

import pytest

from tests.support.cli.doc_page import RunCommand, SaveFile, Step, ports, steps
from tests.support.cli.doc_reader import Reader
from tests.support.cli.natsctl_command import ROOT
from tests.support.servers.nats_server import NatsServer
from tests.support.servers.ports import free_port

DOCS = ROOT / "docs"
PAGES = [page for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if steps(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
async def test_the_commands_of_a_page_print_the_output_of_the_page(
    page: Path, folder: Path, nats_server: NatsServer
) -> None:
    free = {port: free_port() for port in ports(page)}
    fresh = page.stem == "README"  # its commands start as they do for a newcomer
    async with Reader(folder, nats_server.url, free, fresh=fresh) as reader:
        for step in steps(page):
            await reader.run(step)


@pytest.mark.parametrize("name", ["README", "first-controller", "production", "upgrade", "debug"])
def test_the_pages_with_many_steps_are_tested(name: str) -> None:
    page = next(page for page in PAGES if page.stem == name)
    assert len(steps(page)) >= 8


def page(tmp_path: Path, text: str) -> list[Step]:
    file = tmp_path / "page.md"
    file.write_text(text)
    return steps(file)


def test_each_command_of_a_page_has_its_own_output(tmp_path: Path) -> None:
    text = "Type:\n\n```console\n$ one\na\n\nb\n$ two\n```\n\n```toml\n$ three\n```\n"
    next_block = "```console\n$ four\nc\n```\n"
    assert page(tmp_path, text + next_block) == [
        RunCommand(4, "one", "a\n\nb"),
        RunCommand(8, "two", ""),
        RunCommand(15, "four", "c"),
    ]


@pytest.mark.parametrize(
    ("expected", "output", "matches"),
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
def test_an_output_matches_the_whole_output_of_the_page(
    expected: str, output: str, *, matches: bool
) -> None:
    assert RunCommand(1, "natsctl", expected).matches(output) is matches


def test_the_output_of_a_daemon_has_the_lines_of_the_page_in_order() -> None:
    expected = RunCommand(1, "natsctl run", "… one\ntwo …")
    assert expected.is_part_of("12:00 one\nbetween\ntwo 3\nafter\n")
    assert not expected.is_part_of("two 3\n12:00 one\n")


def test_only_read_only_commands_run_again() -> None:
    for command, is_read_only in (
        ("natsctl get a", True),
        ("natsctl replay a/b -o a.json", True),
        ("natsctl repair external list", True),
        ("natsctl repair external resolve a/b --created", False),
        ("natsctl apply -f a", False),
    ):
        assert RunCommand(1, command, "").is_read_only is is_read_only


def test_a_daemon_runs_in_another_terminal() -> None:
    for command, is_daemon in (
        ("natsctl run -c a:B", True),
        ("cd new && natsctl run -c a:B", True),
        ("natsctl resync", False),
    ):
        assert RunCommand(1, command, "").is_daemon is is_daemon


def test_a_block_that_names_a_file_is_saved(tmp_path: Path) -> None:
    text = "```toml natsctl.toml\n[http]\nlisten = 1\n```\n\n```console\n$ one\n```\n"
    assert page(tmp_path, text) == [
        SaveFile(2, "natsctl.toml", "[http]\nlisten = 1\n"),
        RunCommand(7, "one", ""),
    ]


def test_an_output_that_begins_with_an_interrupt_ends_the_command() -> None:
    expected = RunCommand(1, "natsctl run", "^C\n… stopping; …")
    assert expected.is_interrupt
    assert expected.is_part_of("12:00 stopping; once more\n")
    assert not expected.is_part_of("^C\n")
    assert not RunCommand(1, "natsctl run", "… syncing").is_interrupt


def test_the_ports_of_a_page_are_found(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("curl :8081/livez, 127.0.0.1:8080, 80801, :4222")
    assert ports(file) == ["8080", "8081"]
