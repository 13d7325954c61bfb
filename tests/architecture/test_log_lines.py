"""Every log line is a constant event in plain words, plus fields (natsctl/telemetry/logger.py)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "natsctl"
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
RESERVED = {"msg", "level", "message", "event", "time", "logger", "exception", "repeated"}
MODULES = [path for path in PACKAGE.rglob("*.py") if "= get_logger(__name__)" in path.read_text()]


def log_calls(module: Path) -> Iterator[ast.Call]:
    """Yield the calls of a method of the module's logger."""
    for node in ast.walk(ast.parse(module.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("log"), attr=attr)) if attr in LEVELS:
                yield node


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_log_line_is_a_constant_event_with_fields(module: Path) -> None:
    for call in log_calls(module):
        location = f"{module}:{call.lineno}"
        match call.args:
            case [ast.Constant(str(event))]:
                assert "%" not in event, location
                assert not event.endswith("."), location
            case _:
                pytest.fail(f"{location}: the only positional argument is a constant event")
        assert not RESERVED & {str(keyword.arg) for keyword in call.keywords}, location
