"""A guided tour: `python -m controllers.demo`, or `make demo`, shows what Greetings does.

Everything shown is done with the `natsctl` command, which you can type as well.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controllers.greetings import Greetings
from natsctl import GarbageLimits

NATSCTL = (sys.executable, "-m", "natsctl.cli")
WAIT_S = 60.0


class Demo(Greetings):
    """Greetings that collects orphans after seconds, so that one can be watched going."""

    garbage = GarbageLimits(interval_s=0.5, grace_s=4.0)


def main() -> None:
    """Take the tour; a step that does not happen ends it with an error."""
    with tempfile.TemporaryDirectory(prefix="natsctl-demo-") as folder, _daemon(Path(folder)):
        _converge()
        _heal()
        _delete()
        _collect()
    _what_next()


def _converge() -> None:
    _say("1. Put two greetings and a team's defaults. Each greeting becomes a route.")
    _run("put", "defaults", "team-a", '{"spec": {"punctuation": "?!"}}')
    _run("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    _run("put", "greetings", "team-a.pier", '{"spec": {"text": "ahoy", "replicas": 2}}')
    _until("both routes are there", lambda: _routes() == {"shop", "team-a.pier"})
    _run("list", "routes")
    _say("   The status was written back, and woke nobody:")
    _run("get", "greetings", "shop", "-o", "yaml")


def _heal() -> None:
    _say("2. Delete a route by hand. It is missing for a moment only.")
    before = _revision("shop")
    _run("delete", "routes", "shop")
    _until("the route is back", lambda: _revision("shop") > before)
    _run("list", "routes")


def _delete() -> None:
    _say("3. Delete a greeting. What it owned goes with it.")
    _run("delete", "greetings", "team-a.pier")
    _until("its route is gone", lambda: _routes() == {"shop"})
    _run("list", "routes")


def _collect() -> None:
    _say("4. Somebody left a route whose owner never existed: an orphan.")
    marks = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": "nobody"}
    spec = {"subject": "hello.nobody", "payload": "?"}
    orphan = {"metadata": {"labels": marks, "annotations": marks}, "spec": spec}
    _run("put", "routes", "stray", json.dumps(orphan))
    _run("gc", "plan", "--controller", "controllers.demo:Demo")
    _say("   It is collected once it was suspected for long enough.")
    _until("the orphan is gone", lambda: _routes() == {"shop"})
    _run("list", "routes")


def _what_next() -> None:
    _say("That was it. What to try next:")
    activate = os.path.relpath(Path(sys.executable).parent / "activate")
    print(
        f"""
    . {activate}
    natsctl run --embedded --controller controllers.greetings:Greetings

and in another terminal:

    . {activate}
    natsctl put greetings shop '{{"spec": {{"text": "hi"}}}}'
    natsctl tree shop
    natsctl explain shop
    natsctl history greetings shop
    natsctl watch routes

In place of the first, this starts the controller again whenever you edit it:

    natsctl dev --controller controllers.greetings:Greetings
"""
    )


@contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    """Run the controller beside an embedded server while the context lasts."""
    _say("A private nats-server and a controller start:", lines=0)
    command = ("run", "--embedded", "--controller", "controllers.demo:Demo")
    print(f"$ natsctl {' '.join(command)}")
    log = folder / "daemon.log"
    for name in ("NATSCTL_SERVER", "NATSCTL_CONTEXT", "NATS_URL"):
        os.environ.pop(name, None)  # the demo never touches a server of yours
    with log.open("wb") as output:
        daemon = subprocess.Popen(
            (*NATSCTL, *command, "--port", "0"), stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _until("it has started", lambda: _started(daemon, log))
            yield
        finally:
            daemon.terminate()
            daemon.wait(WAIT_S)


def _started(daemon: "subprocess.Popen[bytes]", log: Path) -> bool:
    text = log.read_text()
    if daemon.poll() is not None:
        sys.exit(f"the daemon ended:\n{text}")
    _, found, rest = text.partition("NATSCTL_SERVER=")
    if found:
        os.environ["NATSCTL_SERVER"] = rest.split()[0]
    return "syncing" in text


def _run(*arguments: str) -> None:
    """Show a command and what it says."""
    shown = " ".join(f"'{a}'" if set(a) & set(' {}"') else a for a in arguments)
    print(f"\n$ natsctl {shown}", flush=True)
    subprocess.run((*NATSCTL, *arguments), check=True)


def _ask(*arguments: str) -> str:
    done = subprocess.run((*NATSCTL, *arguments), capture_output=True, text=True, check=False)
    return done.stdout


def _routes() -> set[str]:
    return {line.rpartition("/")[2] for line in _ask("list", "routes", "-o", "name").split()}


def _revision(key: str) -> int:
    found = _ask("history", "routes", key, "-o", "json")
    entries = json.loads(found) if found else []
    live = [entry["revision"] for entry in entries if entry.get("operation", "PUT") == "PUT"]
    return max(live, default=0)


def _until(what: str, condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; end the tour where it never does."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > WAIT_S:
            sys.exit(f"not within {WAIT_S:.0f} s: {what}")
        time.sleep(0.05)


def _say(text: str, *, lines: int = 1) -> None:
    print("\n" * lines + text, flush=True)


if __name__ == "__main__":
    main()
