"""Represents the health checks of a process, as its probes report them."""

from typing import Literal

import msgspec

from natsctl.telemetry.hiding import hidden

Endpoint = Literal["livez", "readyz"]


class Check(msgspec.Struct, frozen=True):
    """One aspect of a process's health; `failure` is the reason it fails, empty if it passes."""

    name: str
    failure: str = ""

    def __str__(self) -> str:
        reason = " ".join(hidden(self.failure).split())  # one line
        return f"[-]{self.name} failed: {reason}" if self.failure else f"[+]{self.name} ok"


class CheckVerdict(msgspec.Struct, frozen=True):
    """The result of all checks behind one endpoint, such as `readyz`."""

    endpoint: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if no check fails."""
        return not any(check.failure for check in self.checks)

    def text(self, *, verbose: bool = False) -> str:
        """Return `ok`, or a line for each check if one fails or if *verbose*.

        The form is that of a kube-apiserver.
        """
        if self.passed and not verbose:
            return "ok"
        end = f"{self.endpoint} check {'passed' if self.passed else 'failed'}\n"
        return "\n".join((*map(str, self.checks), end))
