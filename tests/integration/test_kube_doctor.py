"""What the doctor makes of a server that is no cluster, or says odd things."""

import json

import pytest
from aiohttp import web

from controllers.webapps import WebApps
from natsctl.daemon.doctor.finding import Bounds, Finding, Result
from natsctl.daemon.doctor.kube import CLOCK, CLUSTER, check_kube
from natsctl.daemon.rbac import needs
from natsctl.kubernetes.access.options import KubeOptions
from tests.support.servers.kube_http import answering, in_turn

VERSION = json.dumps({"major": "1", "minor": "30", "gitVersion": "v1.30.0"}).encode()


async def examined(*answers: web.Response) -> list[Finding]:
    async with answering(in_turn(*answers)) as server:
        options = KubeOptions(server=server.url, attempts_max=1)
        return [found async for found in check_kube(options, needs([WebApps()]), Bounds())]


async def test_a_server_that_is_no_cluster_is_told() -> None:
    (found,) = await examined(web.Response(body=b"<html>sign in</html>"))
    assert (found.check, found.result) == (CLUSTER, Result.FAILED)
    assert found.found.endswith("does not answer as a kube-apiserver does")
    assert "--kubeconfig" in found.advice


async def test_a_server_that_breaks_off_is_told() -> None:
    good, bad = web.Response(body=VERSION), web.Response(status=500, body=b"{}")
    (found,) = await examined(good, bad)
    assert (found.check, found.result) == (CLUSTER, Result.FAILED)


@pytest.mark.parametrize("date", ["soon", "Thu, 01 Jan 2026 00:00:00 -0000"])
async def test_a_time_that_is_none_is_not_compared(date: str) -> None:
    found = await examined(web.Response(body=VERSION, headers={"Date": date}))
    assert found[0].result is Result.OK
    assert CLOCK not in [each.check for each in found]
