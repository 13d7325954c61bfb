"""natsctl beside kubectl: the same verb on like objects ends alike and says the same in its words.

kubectl runs against a real kube-apiserver, over a ConfigMap; natsctl over an object of a bucket.
"""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cli.natsctl_command import Natsctl
from tests.support.servers.kube_apiserver import KubeServer
from tests.support.servers.kube_cluster import KubeCluster
from tests.support.servers.nats_server import NatsServer

LIMIT_S = 60.0


class Step(NamedTuple):
    """What is typed in both programs, a TEXT for `apply` and `diff`, and what both must print."""

    verb: str
    kubectl: str
    natsctl: str
    printed: str
    text: str = ""
    bad: str = ""


NOTE, NOTES = "configmap/a", "notes/a"
MISSING = r"(notes \"b\" not found|notes has no b)"
STEPS = (
    Step("get", "configmaps", "notes", r"^(No resources found|bucket notes is empty)"),
    Step("get", "configmap/b", "notes/b", MISSING),
    Step("get", "configmap b", "notes b", MISSING),
    Step("describe", "configmap/b", "notes/b", MISSING),
    Step("delete", "configmap/b", "notes/b", MISSING),
    Step("label", "configmap/b x=y", "notes/b x=y", MISSING),
    Step("annotate", "configmap/b x=y", "notes/b x=y", MISSING),
    Step("wait", "configmap/b --for=jsonpath={.x}=y", "notes/b --for=jsonpath={.x}=y", MISSING),
    Step("diff", "-f -", "-f -", r"^\+.*text: hi$", "hi"),
    Step("apply", "-f -", "-f -", r"^notes/a created", "hi"),
    Step("apply", "-f -", "-f -", r"^notes/a unchanged", "hi"),
    Step("diff", "-f -", "-f -", r"^$", "hi"),
    Step("diff", "-f -", "-f -", r"^- .*text: hi\n\+ .*text: ho$", "ho"),
    Step(
        "apply", "-f - --dry-run=server", "-f - --dry-run", r"^notes/a configured \(.*dry run", "ho"
    ),
    Step("apply", "-f -", "-f -", r"^notes/a configured", "ho"),
    Step("apply", "-f -", "-f -", r"^error: ", bad="{not json"),
    Step("apply", "-f -", "-f -", r"^error: ", bad="kind: ConfigMap"),
    Step("apply", "-f -", "-f -", r"^error: (no objects|there is no document)", bad="\n"),
    Step("apply", "-f none.yaml", "-f none.yaml", r"^error: .*none.yaml"),
    Step("diff", "-f none.yaml", "-f none.yaml", r"^error: .*none.yaml"),
    Step("get", f"{NOTE} -o name", f"{NOTES} -o name", r"^notes/a$"),
    Step(
        "get", f"{NOTE} -o jsonpath={{.data.text}}", f"{NOTES} -o jsonpath={{.spec.text}}", "^ho$"
    ),
    Step("get", f"{NOTE} -o xml", f"{NOTES} -o xml", r"^error: .*xml.*custom-columns.*jsonpath"),
    Step("get", f"{NOTE} --frob", f"{NOTES} --frob", r"(unknown flag:|there is no option) --frob"),
    Step("get", "configmaps -l tier=edge", "notes -l tier=edge", r"^(No resources|nothing in)"),
    Step("label", f"{NOTE} tier=edge", f"{NOTES} tier=edge", r"^notes/a labeled$"),
    Step("label", f"{NOTE} tier=edge", f"{NOTES} tier=edge", r"^notes/a not labeled$"),
    Step(
        *("label", f"{NOTE} tier=core", f"{NOTES} tier=core"),
        r"^error: .*'tier' already has a value \(edge\), and --overwrite is ",
    ),
    Step("label", f"{NOTE} tier=core --overwrite", f"{NOTES} tier=core --overwrite", "a labeled$"),
    Step("get", "configmaps -l tier=core -o name", "notes -l tier=core -o name", r"^notes/a$"),
    Step("label", f"{NOTE} tier-", f"{NOTES} tier-", r"^notes/a unlabeled$"),
    Step("label", NOTE, NOTES, r"^error: (at least one label update|nothing is to be changed)"),
    Step("label", f"{NOTE} %=1", f"{NOTES} %=1", r"'?%"),
    Step("label", "configmaps -l no=such x=y", "notes -l no=such x=y", r"^(nothing in .*)?$"),
    Step("annotate", f"{NOTE} owner=ann", f"{NOTES} owner=ann", r"^notes/a annotated$"),
    Step("annotate", f"{NOTE} owner=ann", f"{NOTES} owner=ann", r"^notes/a (not )?annotated$"),
    Step("annotate", f"{NOTE} owner-", f"{NOTES} owner-", r"^notes/a annotated$"),
    Step(
        *(
            "wait",
            f"{NOTE} --for=jsonpath={{.data.text}}=ho",
            f"{NOTES} --for=jsonpath={{.spec.text}}=ho",
        ),
        r"^notes/a condition met$",
    ),
    Step(
        *("wait", f"{NOTE} --for=jsonpath={{.x}}=y --timeout=1s"),
        f"{NOTES} --for=jsonpath={{.x}}=y --timeout=1s",
        r"^error: timed out waiting for the condition on notes/a$",
    ),
    Step(
        *("wait", f"{NOTE} --for=delete --timeout=1s", f"{NOTES} --for=delete --timeout=1s"),
        r"^error: timed out waiting for the condition on notes/a$",
    ),
    Step("wait", "configmap/b --for=delete", "notes/b --for=delete", r"^(notes/b condition met)?$"),
    Step("wait", f"{NOTE} --for=frob", f"{NOTES} --for=frob", r"^error: .*frob"),
    Step("describe", NOTE, NOTES, r"(?s)\ba\b.*(Events|events|no controller)"),
    Step("delete", "configmap", "notes", r"^error: .*nam"),
    Step("delete", "configmap -l no=such", "notes -l no=such", r"^(No resources found|nothing in)"),
    Step("delete", NOTE, NOTES, r"notes[ /]\"?a\"? deleted"),
    Step("delete", NOTE, NOTES, r"(\"a\" not found|has no a)"),
)


@pytest.fixture
async def natsctl(folder: Path, nats_server: NatsServer) -> Natsctl:
    program = Natsctl(folder, nats_server.url)
    await program.done("put", "notes/first", "spec: {}", "--create-bucket")
    await program.done("delete", "notes/first")
    return program


@pytest.mark.usefixtures("kube_assets")
async def test_natsctl_ends_and_answers_as_kubectl_does(
    natsctl: Natsctl, folder: Path, kube_server: KubeCluster, kube_namespace: str
) -> None:
    assert isinstance(kube_server, KubeServer)
    program = Path(os.environ["KUBEBUILDER_ASSETS"]) / "kubectl"
    login = ("--kubeconfig", str(kube_server.kubeconfig()), "--namespace", kube_namespace)
    different: list[str] = []
    for step in STEPS:
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
        theirs = step.bad or json.dumps(manifest | {"data": {"text": step.text}})
        ours = step.bad or json.dumps({"bucket": "notes", "key": "a", "spec": {"text": step.text}})
        beside = await asyncio.to_thread(
            subprocess.run,
            [str(program), step.verb, *step.kubectl.split(), *login],
            input=theirs,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "GOGC": "off"},  # a third faster
            timeout=LIMIT_S,
            check=False,
        )
        done = await natsctl(step.verb, *step.natsctl.split(), stdin=ours)
        shown = f"{beside.stdout}{beside.stderr}".replace("configmaps", "notes")
        shown = shown.replace("configmap", "notes")
        printed = f"{done.out}{done.err}".replace("natsctl: error:", "error:")
        same_end = beside.returncode == done.status
        if step.verb != "diff":  # natsctl tells apart wrong usage, not found and conflicts
            same_end = bool(beside.returncode) == bool(done.status)
        elif beside.returncode > 1:
            same_end = done.status > 1
        for who, text in (("kubectl", shown), ("natsctl", printed)):
            if not re.search(step.printed, text.rstrip("\n"), re.MULTILINE):
                different.append(f"{step.verb} {step.natsctl}: {who} printed {text!r}")
        if not same_end:
            ends = f"{beside.returncode} {done.status}"
            different.append(f"{step.verb} {step.natsctl}: {ends}\n{shown}{printed}")
    assert different == []
