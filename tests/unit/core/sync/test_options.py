"""The options of a controller are checked by type and range, and misspelt ones are found."""

import math

import pytest

from natsctl import RateLimit
from natsctl.core.options import (
    POLICY,
    RATE,
    SECONDS,
    SECONDS_OR_ZERO,
    TEXT,
    WORKERS,
    Option,
    check_class,
    check_options,
)
from natsctl.errors import UsageError


async def waiting(_error: Exception, _failures: int) -> None:
    """Wait, as no policy does."""


@pytest.mark.parametrize(
    ("option", "accepted", "refused"),
    [
        (WORKERS, (1, 7, 10_000), (0, -1, 10_001, 1.0, True, "1", None)),
        (SECONDS, (0.001, 1, 1e9), (0, 0.0, -1, True, math.inf, math.nan, "1", None)),
        (SECONDS_OR_ZERO, (0, 0.0, 2.5), (-0.1, False, math.inf, math.nan, "0", None)),
        (TEXT, ("", "a"), (b"a", 1, None)),
        (POLICY, (print,), (waiting, 1, None)),
        (RATE, (None, RateLimit(qps=1.0, burst=1)), (1, "1")),
    ],
    ids=lambda value: value.needs if isinstance(value, Option) else "",
)
def test_an_option_accepts_values_of_its_type_and_range(
    option: Option, accepted: tuple[object, ...], refused: tuple[object, ...]
) -> None:
    assert [value for value in accepted if not option.accepts(value)] == []
    assert [value for value in refused if option.accepts(value)] == []


def test_an_option_without_a_value_is_not_checked() -> None:
    check_options("Apps", {"workers": WORKERS, "resync_s": SECONDS}, {"resync_s": 5})
    with pytest.raises(UsageError, match="Apps: workers is 0, and must be a whole number"):
        check_options("Apps", {"workers": WORKERS}, {"workers": 0})


class Base:
    workers: object = 1
    resync_s: object = 600.0
    label: object = "apps"
    worker_names: object = ()

    def run(self) -> None:
        """Run the controller."""


OPTIONS = {"workers": WORKERS, "resync_s": SECONDS, "label": TEXT}


def check(cls: type[Base]) -> None:
    check_class(cls(), Base, OPTIONS, {"run": "def run(self)"})


def test_a_class_may_have_other_attributes() -> None:
    class Apps(Base):
        _worker = 5  # private
        worker = "five"  # no number of workers
        labels = "app"  # any text is a label
        worker_names = ("one",)  # an attribute of the base class
        image = 5
        work = 5  # less similar to an option than a misspelling

    check(Apps)


@pytest.mark.parametrize(
    ("name", "option"), [("worker", "workers"), ("Workers", "workers"), ("resync", "resync_s")]
)
def test_a_misspelt_option_is_refused_with_its_name(name: str, option: str) -> None:
    cls = type("Apps", (Base,), {name: 5})
    with pytest.raises(
        UsageError, match=f"Apps: {name} = 5 is not an option; did you mean {option}"
    ):
        check(cls)


def test_a_misspelt_option_of_a_parent_is_refused() -> None:
    class Parent(Base):
        worker = 5

    class Apps(Parent):
        pass

    with pytest.raises(UsageError, match="did you mean workers"):
        check(Apps)


def test_a_class_that_was_refused_is_refused_again() -> None:
    class Apps(Base):
        worker = 5

    for _ in range(2):
        with pytest.raises(UsageError):
            check(Apps)


def test_the_value_of_each_object_is_checked() -> None:
    class Apps(Base):
        pass

    check(Apps)
    apps = Apps()
    apps.workers = 0
    with pytest.raises(UsageError, match="workers is 0"):
        check_class(apps, Base, OPTIONS, {})
