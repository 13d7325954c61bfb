"""Whether a process is well: checks, each with a name and a reason where it fails."""

import msgspec

from natsctl.telemetry.hiding import hidden


class Check(msgspec.Struct, frozen=True):
    """One thing that is looked at; `failure` says what is wrong with it, empty if nothing is."""

    name: str
    failure: str = ""

    def __str__(self) -> str:
        told = " ".join(hidden(self.failure).split())  # on one line, whatever failed
        return f"[-]{self.name} failed: {told}" if self.failure else f"[+]{self.name} ok"


class Verdict(msgspec.Struct, frozen=True):
    """What several checks say together, under the name of the question, such as `readyz`."""

    question: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not any(check.failure for check in self.checks)

    def text(self, *, verbose: bool = False) -> str:
        """Return it as a kube-apiserver does: `ok`, or a line for each check.

        There is a line for each where one fails, and where that is asked for.
        """
        if self.passed and not verbose:
            return "ok"
        end = f"{self.question} check {'passed' if self.passed else 'failed'}\n"
        return "\n".join((*map(str, self.checks), end))
