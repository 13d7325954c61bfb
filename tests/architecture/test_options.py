"""The documentation lists every option of a controller with its default."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from natsctl import (
    Controller,
    ControllerRuntime,
    DynamicOptions,
    GarbageLimits,
    InformerController,
    ManagedReconciler,
    kv,
)

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(\w+)`(?:, `(\w+)`)? \| (.*?) \|", re.MULTILINE)


def documented_defaults(page: str) -> dict[str, str]:
    text = (DOCS / page).read_text()
    return {
        name: default.strip("`")
        for first, second, default in ROW.findall(text)
        for name in (first, second)
        if name
    }


def test_the_page_lists_the_options_of_a_controller_with_their_defaults() -> None:
    options = {
        name: value
        for name, value in vars(Controller).items()
        if name in Controller.__annotations__ and name != "name"
    }
    defaults = {name: repr(value).replace("'", '"') for name, value in options.items()}
    defaults |= {"retry": "always_retry", "garbage": "GarbageLimits()"}
    rows = documented_defaults("controllers.md")
    assert {name: rows.get(name) for name in defaults} == defaults


def test_the_page_lists_the_garbage_collection_limits_with_their_defaults() -> None:
    rows = documented_defaults("controllers.md")
    limits = GarbageLimits()
    defaults = {name: repr(getattr(limits, name)) for name in limits.__struct_fields__}
    assert {name: rows.get(name) for name in defaults} == defaults


@pytest.mark.parametrize(
    ("function", "page"),
    [
        (InformerController, "watchers.md"),
        (ManagedReconciler, "external.md"),
        (kv, "buckets.md"),
        (DynamicOptions, "dynamic.md"),
    ],
)
def test_the_page_lists_every_keyword_with_its_default(function: Any, page: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    keywords = [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    rows = documented_defaults(page)
    assert {parameter.name for parameter in keywords} - rows.keys() == set()
    plain = {
        parameter.name: repr(parameter.default).replace("'", '"')
        for parameter in keywords
        if isinstance(parameter.default, bool | int | float | str) and parameter.default != ""
    }
    assert {name: rows[name] for name in plain} == plain


def test_every_method_of_the_runtime_that_a_page_names_exists() -> None:
    text = "\n".join(page.read_text() for page in DOCS.glob("*.md"))
    named = set(re.findall(r"self\.runtime\.(\w+)", text))
    assert named
    assert {name for name in named if not hasattr(ControllerRuntime, name)} == set()
