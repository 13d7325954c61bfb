"""The frames of the user's own code in a stack."""

import traceback
from pathlib import Path

import natsctl
from natsctl.telemetry.frames import user_frames_of

PACKAGE = Path(natsctl.__file__).parent
PROGRAM = (  # from the console script to the code of natsctl
    "/opt/venv/bin/natsctl",
    str(PACKAGE.parent / "natsctl_main.py"),
    str(PACKAGE / "cli" / "main.py"),
)


def users(*files: str) -> list[str]:
    """Return the files of the user's own code among those of a stack, outermost first."""
    stack = traceback.StackSummary.from_list([(file, 1, "call", "call()") for file in files])
    return [frame.filename for frame in user_frames_of(stack)]


def test_the_program_natsctl_is_no_code_of_the_user() -> None:
    assert users(*PROGRAM) == []


def test_a_controller_that_the_program_runs_is_code_of_the_user() -> None:
    assert users(*PROGRAM, "/home/me/shops.py") == ["/home/me/shops.py"]


def test_a_program_that_runs_natsctl_is_code_of_the_user() -> None:
    assert users("/home/me/main.py", PROGRAM[-1]) == ["/home/me/main.py"]
