"""`natsctl new`: a controller to begin with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from natsctl.cli.framework.command import Command, commands, examples
from natsctl.cli.output.printing import line
from natsctl.daemon.template import Project, project
from natsctl.errors import ConflictError, UsageError

KUBECTL = "kubectl get configmaps -l natsctl.io/owner-key=first"

app = commands()


@app.command(
    cls=Command,
    epilog=examples(
        "natsctl new site",
        "natsctl new edge-site --kube",
    ),
)
def new(
    *,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="what one of its objects is called, such as site")
    ],
    kube: Annotated[
        bool, typer.Option("--kube", help="what it makes is of a Kubernetes cluster")
    ] = False,
) -> None:
    """Write a controller, its test and a manifest, which run as they are.

    They are written into the current folder. Nothing is written where a file of such a name is
    there already.
    """
    made = project(name, kube=kube)
    _write(Path.cwd(), made.files)
    for file in made.files:
        line(f"wrote {file}")
    for told in ("", "Next:", *_next(made)):
        line(told)


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Write all files or, where one cannot be, none."""
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ConflictError(f"nothing was written, for this is there already: {', '.join(there)}")
    written: list[Path] = []
    try:
        for name, text in files.items():
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise UsageError(f"{error.filename} cannot be written: {error.strerror}") from error


def _next(made: Project) -> list[str]:
    """Return what to do with it, as a person would type it."""
    listing = f"natsctl list {made.made}" if made.made else KUBECTL
    steps = {
        f"python -m pytest {made.test}": "its test, in memory",
        f"natsctl run --embedded --controller {made.controller}": "beside a server of its own",
        f"natsctl apply -f {made.manifest}": "in another terminal",
        listing: "what was made",
    }
    width = max(map(len, steps))
    return [f"  {step.ljust(width)}   # {why}" for step, why in steps.items()]
