"""The cluster checks of doctor report servers with unexpected responses."""

import json

import pytest
from aiohttp import web

from controllers.webapps import WebApps
from natsctl import KubeOptions, kube, tertiary
from natsctl.daemon.doctor.finding import Bounds, CheckFinding, Result
from natsctl.daemon.doctor.kube import CLOCK, CLUSTER, check_kube
from natsctl.daemon.rbac import needs
from tests.support.servers.kube_http import answering, hang, in_turn

VERSION = json.dumps({"major": "1", "minor": "30", "gitVersion": "v1.30.0"}).encode()


async def examined(*responses: web.Response) -> list[CheckFinding]:
    async with answering(in_turn(*responses)) as server:
        options = KubeOptions(server=server.url, attempts_max=1)
        return [finding async for finding in check_kube(options, needs([WebApps()]), Bounds())]


async def test_doctor_reports_a_server_that_is_not_a_kube_apiserver() -> None:
    (finding,) = await examined(web.Response(body=b"<html>sign in</html>"))
    assert (finding.check, finding.result) == (CLUSTER, Result.FAILED)
    assert finding.found.endswith("does not answer as a kube-apiserver does")
    assert "--kubeconfig" in finding.advice


async def test_doctor_reports_a_server_that_does_not_answer() -> None:
    async with answering(hang) as server:
        options = KubeOptions(server=server.url, connect_timeout_s=0.1)
        needed = needs([WebApps()])
        (finding,) = [finding async for finding in check_kube(options, needed, Bounds())]
    assert (finding.check, finding.result) == (CLUSTER, Result.FAILED)
    assert f"{server.url} does not answer within 0.2 s" in finding.found


async def test_doctor_reports_a_server_that_fails_after_the_first_response() -> None:
    good, bad = web.Response(body=VERSION), web.Response(status=500, body=b"{}")
    (finding,) = await examined(good, bad)
    assert (finding.check, finding.result) == (CLUSTER, Result.FAILED)


@pytest.mark.parametrize(("optional", "result"), [(True, Result.WARNING), (False, Result.FAILED)])
async def test_doctor_reports_an_api_group_whose_own_server_is_gone(
    optional: bool,  # noqa: FBT001 - a parameter of the test
    result: Result,
) -> None:
    class Things(WebApps):
        nodes = tertiary(kube("metrics.k8s.io/v1beta1", "NodeMetrics", optional=optional))

    async def answer(request: web.Request) -> web.Response:
        if request.path.startswith("/apis/metrics.k8s.io"):
            return web.Response(status=503, body=b"service unavailable")
        if request.path.endswith("/kube-system"):
            return web.Response(body=b'{"metadata": {"uid": "one"}}')
        return web.Response(body=VERSION)

    async with answering(answer) as server:
        options = KubeOptions(server=server.url, attempts_max=1)
        findings = [found async for found in check_kube(options, needs([Things()]), Bounds())]
    [finding] = [found for found in findings if found.check.startswith("kind NodeMetrics")]
    assert finding.result is result
    assert "service unavailable" in finding.found
    assert "kubectl get apiservices" in finding.advice


@pytest.mark.parametrize("date", ["soon", "Thu, 01 Jan 2026 00:00:00 -0000"])
async def test_doctor_ignores_an_invalid_date_header(date: str) -> None:
    findings = await examined(web.Response(body=VERSION, headers={"Date": date}))
    assert findings[0].result is Result.OK
    assert CLOCK not in [finding.check for finding in findings]
