"""Simulation runs the controllers of every surface, and rejects other classes."""

from pathlib import Path
from typing import Any

import pytest

from natsctl import DynamicWatcher, InformerController, Resource, UsageError
from natsctl.testing import SimulationError, simulate
from tests.support.controllers import simulated_surfaces as surfaces
from tests.support.controllers.faulty import DOCUMENTS

OF_ONE_PROCESS = [surfaces.StreamedSigns, surfaces.WatchedSigns]
CORRECT = [surfaces.SignsOfShops, *OF_ONE_PROCESS]


@pytest.mark.parametrize("controller", CORRECT)
def test_a_correct_class_passes(controller: type[Any]) -> None:
    simulate(controller, objects=DOCUMENTS, runs=6)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("controller", OF_ONE_PROCESS)  # the other is in test_promises.py
def test_a_correct_class_passes_ten_thousand_runs(controller: type[Any]) -> None:
    simulate(controller, objects=DOCUMENTS, runs=10_000)


def test_objects_that_stay_are_not_clean_unless_their_bucket_is_kept() -> None:
    with pytest.raises(SimulationError, match="property `clean`"):
        simulate(surfaces.KeepsSigns, objects=DOCUMENTS, runs=6)
    simulate(surfaces.KeepsSigns, objects=DOCUMENTS, runs=6, ignore=["signs"], keep=["signs"])


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"bucket: [", "is neither YAML nor JSON"),
        (b"\xff\xfe\x00", "is neither YAML nor JSON"),
        (b"bucket: shops\nkey: a\nspec: {opened: 2026-02-30}", "is neither YAML nor JSON: day is"),
        (b"[" * 500 + b"]" * 500, "is nested too deeply"),
        (b"shops", "a document is not a mapping"),
    ],
    ids=["syntax", "bytes", "day", "depth", "text"],
)
def test_a_bad_file_of_objects_is_an_error_that_names_it(
    tmp_path: Path, content: bytes, error: str
) -> None:
    file = tmp_path / "shops.yaml"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=error):
        simulate(surfaces.SignsOfShops, objects=file)


class FailingStream(surfaces.StreamedSigns):
    async def _handle(self, event: object) -> None:
        raise ValueError(f"no sign for {event}")


def test_a_stream_that_never_settles_is_found_with_its_last_log_line() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(FailingStream, objects=DOCUMENTS)
    assert "ValueError: no sign for" in caught.value.finding.detail


class NoKinds(InformerController):
    """Watches nothing."""


class NeedsArgument(surfaces.StreamedSigns):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path


@pytest.mark.parametrize(
    ("controller", "error"),
    [
        (Resource, "Resource cannot be simulated, since it has no"),
        (DynamicWatcher, "a class around a Resource or a DynamicWatcher"),
        (NoKinds, "NoKinds declares no kinds"),
        (NeedsArgument, "needs constructor arguments"),
        (NoKinds(), "is not a class"),
    ],
)
def test_another_class_is_an_error_that_names_the_reason(controller: type[Any], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        simulate(controller, objects=DOCUMENTS)
