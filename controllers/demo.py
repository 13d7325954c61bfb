"""A guided tour of the Greetings controller: `python -m controllers.demo`, or `make demo`.

The tour runs `natsctl` commands and prints each one with its output.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NATSCTL = (sys.executable, "-m", "natsctl")
WAIT_S = 60.0
CONTROLLER = "controllers.greetings:Greetings"


def main() -> None:
    """Run the tour; exit with an error if a step has no effect."""
    with tempfile.TemporaryDirectory(prefix="natsctl-demo-") as folder, _daemon(Path(folder)):
        _converge()
        _heal()
        _delete()
        _collect()
        offer_console()
    _what_next()


def _converge() -> None:
    _print(
        "1. Put two greetings and the defaults of a team. The controller makes a route for each."
    )
    _run("put", "defaults", "team-a", '{"spec": {"punctuation": "?!"}}')
    _run("put", "greetings", "shop", '{"spec": {"text": "hi"}}')
    _run("put", "greetings", "team-a.pier", '{"spec": {"text": "ahoy", "replicas": 2}}')
    _until("both routes are there", lambda: _routes() == {"shop", "team-a.pier"})
    _run("get", "routes")
    _print("   The controller reports in the status that the greeting is ready:")
    _run("get", "greetings", "shop", "-o", "yaml")


def _heal() -> None:
    _print("2. Delete a route. The controller makes it again.")
    before = _revision("shop")
    _run("delete", "routes", "shop")
    _until("the route is back", lambda: _revision("shop") > before)
    _run("get", "routes")


def _delete() -> None:
    _print("3. Delete a greeting. The controller deletes its route.")
    _run("delete", "greetings", "team-a.pier")
    _until("its route is gone", lambda: _routes() == {"shop"})
    _run("get", "routes")


def _collect() -> None:
    _print("4. Put a route whose owner does not exist: an orphan.")
    marks = {"natsctl.io/owner-kind": "Greeting.greetings", "natsctl.io/owner-key": "nobody"}
    spec = {"subject": "hello.nobody", "payload": "?"}
    orphan = {"metadata": {"labels": marks, "annotations": marks}, "spec": spec}
    _run("put", "routes", "stray", json.dumps(orphan))
    _run("gc", "plan")
    _print("   Garbage collection deletes the orphan after a grace period, or now:")
    _run("gc", "apply", "--yes")
    _run("get", "routes")


def offer_console() -> None:
    """Serve the console on the data of the tour, if a person at a terminal wants it."""
    if not sys.stdin.isatty():
        return
    _print("5. Look at the controller and its objects in a browser.")
    try:
        answer = input("   Open the console? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        return
    if answer.strip().lower() in {"y", "yes"}:
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C ends the console, not the tour
        _run("console", "--port", "0", "--open")


def _what_next() -> None:
    _print("The tour is over. Try this next:")
    activate = os.path.relpath(Path(sys.executable).parent / "activate")
    print(
        f"""
    . {activate}
    natsctl run --embedded --controller controllers.greetings:Greetings

and in another terminal:

    . {activate}
    natsctl put greetings shop '{{"spec": {{"text": "hi"}}}}'
    natsctl describe greetings/shop
    natsctl history greetings/shop
    natsctl get -w routes

Look at all of it in a browser:

    natsctl console

To restart the controller after each change of its source, run this instead of the first command:

    natsctl run --reload --embedded --controller controllers.greetings:Greetings
"""
    )


@contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    """Run the controller and an embedded server for as long as the context lasts."""
    _print("Start a private nats-server and a controller:", lines=0)
    command = ("run", "--embedded", "--controller", CONTROLLER)
    print(f"$ natsctl {' '.join(command)}")
    log = folder / "daemon.log"
    for name in ("NATSCTL_SERVER", "NATSCTL_CONTEXT", "NATS_URL"):
        os.environ.pop(name, None)  # never use another server
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
    if server := re.search(r"url=(nats://[\d.:]+)", text):
        os.environ["NATSCTL_SERVER"] = server[1]
    return "syncing" in text


def _run(*arguments: str) -> None:
    """Print a command and its output."""
    shown = " ".join(f"'{a}'" if set(a) & set(' {}"') else a for a in arguments)
    print(f"\n$ natsctl {shown}", flush=True)
    subprocess.run((*NATSCTL, *arguments), check=True)


def _output(*arguments: str) -> str:
    process = subprocess.run((*NATSCTL, *arguments), capture_output=True, text=True, check=False)
    return process.stdout


def _routes() -> set[str]:
    return {line.rpartition("/")[2] for line in _output("get", "routes", "-o", "name").split()}


def _revision(key: str) -> int:
    history = _output("history", "routes", key, "-o", "json")
    entries = json.loads(history) if history else []
    puts = [entry["revision"] for entry in entries if entry.get("operation", "PUT") == "PUT"]
    return max(puts, default=0)


def _until(state: str, condition: Callable[[], bool]) -> None:
    """Wait until the condition is true; exit with an error after WAIT_S seconds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {WAIT_S:.0f} s: {state}")
        time.sleep(0.05)


def _print(text: str, *, lines: int = 1) -> None:
    print("\n" * lines + text, flush=True)


if __name__ == "__main__":
    main()
