"""`natsctl simulate` prints a finding for people and for programs."""

import json
import re
import signal
from pathlib import Path

import pytest

from natsctl.cli.main import run

FAULTY = "tests.support.controllers.faulty"
FIELDS = ["controller", "runs", "seed", "property", "hint", "script", "faults", "writes", "unread"]


@pytest.fixture
def shops(tmp_path: Path) -> str:
    file = tmp_path / "shops.yaml"
    file.write_text("bucket: shops\nkey: a\nspec: {}\n---\nbucket: shops\nkey: b\nspec: {}\n")
    return str(file)


def simulate(controller: str, *arguments: str) -> int:
    return run(["simulate", "-c", f"{FAULTY}:{controller}", *arguments])


def test_a_finding_has_the_documented_fields(
    shops: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("RestlessStatus", "-f", shops, "-o", "json") == 1
    finding = json.loads(capsys.readouterr().out)
    assert list(finding) == FIELDS
    assert (finding["controller"], finding["property"]) == ("restlessstatus", "quiet")
    assert finding["script"]
    assert finding["writes"]


def test_without_a_finding_the_property_is_null(
    shops: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("FixedNames", "-f", shops, "--runs", "5", "-o", "json") == 0
    finding = json.loads(capsys.readouterr().out)
    assert (finding["runs"], finding["property"]) == (5, None)


def test_a_class_with_watchers_is_simulated_without_its_kept_bucket(
    shops: str, capsys: pytest.CaptureFixture[str]
) -> None:
    watchers = "tests.support.controllers.simulated_surfaces:KeepsSigns"
    options = ("--runs", "5", "--ignore", "signs", "--keep", "signs")
    assert run(["simulate", "-c", watchers, "-f", shops, *options]) == 0
    assert "nothing was found in 5 runs of keepssigns" in capsys.readouterr().out


def test_the_seed_of_a_finding_shows_it_again(
    shops: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("SwallowsErrors", "-f", shops, "-o", "json") == 1
    finding = json.loads(capsys.readouterr().out)
    assert finding["runs"] > 1
    assert (
        simulate("SwallowsErrors", "-f", shops, "-o", "json", "--seed", str(finding["seed"])) == 1
    )
    assert json.loads(capsys.readouterr().out) == {**finding, "runs": 1}


def test_a_handler_that_ignores_its_cancellation_is_found(
    shops: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("IgnoresCancellation", "-f", shops, "--runs", "5", "-o", "json") == 1
    finding = json.loads(capsys.readouterr().out)
    assert (finding["runs"], finding["property"]) == (1, "settles")


def test_several_processes_find_the_same(shops: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate("SwallowsErrors", "-f", shops, "-o", "json") == 1
    alone = json.loads(capsys.readouterr().out)
    assert simulate("SwallowsErrors", "-f", shops, "-o", "json", "-n", "2") == 1
    assert json.loads(capsys.readouterr().out) == alone


def test_an_interrupt_prints_the_runs_so_far(
    shops: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate("Interrupted", "-f", shops) == 128 + signal.SIGINT
    captured = capsys.readouterr()
    assert re.search(r"interrupted: nothing was found in [1-9]\d* runs? of", captured.out)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("bucket: shops\nkey: a\nspec: {parts: many}\n", "document 1: not a valid Shop"),
        ("bucket: shops\nspec: {}\n", "document 1: it has no key: add"),
        ("bucket: other\nkey: a\nspec: {}\n", "no object of Shop.shops"),
        ("bucket: parts\nkey: a\nspec: {}\n", "no object of Shop.shops"),
    ],
)
def test_an_invalid_object_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, error: str
) -> None:
    file = tmp_path / "shops.yaml"
    file.write_text(text)
    assert simulate("FixedNames", "-f", str(file)) == 2
    assert error in capsys.readouterr().err
