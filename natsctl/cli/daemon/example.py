"""`natsctl example`: lists the example controllers, and prints one."""

import ast
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.framework.command import App
from natsctl.cli.output.printing import write_table
from natsctl.cli.output.terminal import write_text
from natsctl.daemon.settings.did_you_mean import did_you_mean
from natsctl.errors import NotFoundError

app = App()

_PACKAGE = Path(__file__).parents[2]
_NO_EXAMPLES = ("__init__", "demo")


def example_files() -> dict[str, Path]:
    """Return the file of each example by its name.

    The wheel has the examples in `natsctl/examples`, a checkout in `controllers`.
    """
    installed = _PACKAGE / "examples"
    folder = installed if installed.is_dir() else _PACKAGE.parent / "controllers"
    return {
        path.stem: path for path in sorted(folder.glob("*.py")) if path.stem not in _NO_EXAMPLES
    }


def _names(incomplete: str) -> list[str]:
    return [name for name in example_files() if name.startswith(incomplete)]


@app.add(
    "natsctl example",
    "natsctl example greetings > greetings.py",
    "natsctl run --embedded --controller greetings:Greetings",
)
def example(
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of the example; without it, all examples are listed",
            autocompletion=_names,
        ),
    ] = None,
) -> None:
    """List the example controllers, or print one.

    An example is a Python module that runs as it is. The commands in its docstring expect the
    module in the current folder, under the example's name.
    """
    files = example_files()
    if name is None:
        write_table(
            ["NAME", "DESCRIPTION"], [[key, _description(file)] for key, file in files.items()]
        )
        return
    if name not in files:
        raise NotFoundError(
            f"there is no example {name!r}{did_you_mean(name, files)}; natsctl example lists them"
        )
    source = files[name].read_text("utf-8")
    write_text(source.replace(f"controllers.{name}:", f"{name}:").rstrip("\n"))


def _description(file: Path) -> str:
    """Return the first line of a module's docstring, without the title before the colon."""
    summary = (ast.get_docstring(ast.parse(file.read_bytes())) or "").partition("\n")[0]
    title, _, description = summary.partition(": ")
    return description or title
