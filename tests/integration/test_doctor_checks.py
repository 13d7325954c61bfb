"""Checks of the doctor, each against a real server."""

import json
from typing import Any

import pytest
from aiohttp import web
from nats.js import JetStreamContext

from controllers.webapps import WebApps
from natsctl import GarbageLimits, KubeOptions, NatsOptions, kube, tertiary
from natsctl.daemon.doctor.buckets import check_garbage
from natsctl.daemon.doctor.finding import CheckFinding, Result
from natsctl.daemon.doctor.kube import CLOCK, CLUSTER, check_kube
from natsctl.daemon.doctor.mirrors import check_mirrors
from natsctl.daemon.kinds import used_by
from natsctl.daemon.rbac import needs
from natsctl.errors import StoreTimeoutError
from natsctl.jetstream.connection import Connection
from tests.integration.test_runtime import app, becomes, get, plain, put, running
from tests.support.clients.bucket_keys import keys
from tests.support.clients.nats import connect
from tests.support.controllers.app_controller import Apps
from tests.support.eventually import eventually
from tests.support.servers.kube_http import answering, hang, in_turn
from tests.support.servers.nats_server import NatsServer

# ---- the cluster checks of doctor report servers with unexpected responses

VERSION = json.dumps({"major": "1", "minor": "30", "gitVersion": "v1.30.0"}).encode()


async def examined(*responses: web.Response) -> list[CheckFinding]:
    async with answering(in_turn(*responses)) as server:
        options = KubeOptions(server=server.url, attempts_max=1)
        return [finding async for finding in check_kube(options, needs([WebApps()]))]


async def test_doctor_reports_a_server_that_is_not_a_kube_apiserver() -> None:
    (finding,) = await examined(web.Response(body=b"<html>sign in</html>"))
    assert (finding.check, finding.result) == (CLUSTER, Result.FAILED)
    assert finding.found.endswith("does not answer as a kube-apiserver does")
    assert "--kubeconfig" in finding.advice


async def test_doctor_reports_a_server_that_does_not_answer() -> None:
    async with answering(hang) as server:
        options = KubeOptions(server=server.url, connect_timeout_s=0.1)
        needed = needs([WebApps()])
        (finding,) = [finding async for finding in check_kube(options, needed)]
    assert (finding.check, finding.result) == (CLUSTER, Result.FAILED)
    assert f"{server.url} does not answer within 0.2 s" in finding.found


async def test_doctor_reports_a_server_that_fails_after_the_first_response() -> None:
    good, bad = web.Response(body=VERSION), web.Response(status=500, body=b"{}")
    (finding,) = await examined(good, bad)
    assert (finding.check, finding.result) == (CLUSTER, Result.FAILED)


@pytest.mark.parametrize(("optional", "result"), [(True, Result.WARNING), (False, Result.FAILED)])
async def test_doctor_reports_an_api_group_whose_own_server_is_gone(
    result: Result, *, optional: bool
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
        findings = [found async for found in check_kube(options, needs([Things()]))]
    [finding] = [found for found in findings if found.check.startswith("kind NodeMetrics")]
    assert finding.result is result
    assert "service unavailable" in finding.found
    assert "kubectl get apiservices" in finding.advice


@pytest.mark.parametrize("date", ["soon", "Thu, 01 Jan 2026 00:00:00 -0000"])
async def test_doctor_ignores_an_invalid_date_header(date: str) -> None:
    findings = await examined(web.Response(body=VERSION, headers={"Date": date}))
    assert findings[0].result is Result.OK
    assert CLOCK not in [finding.check for finding in findings]


# ---- the record of garbage collection in a real bucket, and its checks in doctor


class FastGarbage(Apps):
    garbage = GarbageLimits(interval_s=0.1, grace_s=0.5)


async def test_garbage_without_a_record_of_the_bucket_is_held_until_it_is_accepted(
    nats_server: NatsServer,
) -> None:
    async with plain(nats_server) as js:
        async with running(nats_server, FastGarbage()):
            apps, parts = await js.key_value("apps"), await js.key_value("parts")
            for key in ("bar", "baz", "shop"):
                await put(apps, key, app())
            part_keys = ["bar.main", "baz.main", "shop.main"]
            await becomes(parts, *part_keys)
            await eventually(lambda: owners_are_recorded(js))
        await js.delete_key_value("natsctl")
        await js.purge_stream("KV_apps", subject="$KV.apps.shop")

        async with running(nats_server, FastGarbage()) as runtime:
            await eventually(lambda: bool(runtime.garbage_held))
            assert await findings(nats_server) == [
                "collection is held: nothing is remembered about the bucket of App.apps"
            ]
            assert await keys(parts) == part_keys
            await runtime.garbage_accept()
            await becomes(parts, "bar.main", "baz.main")
            assert await findings(nats_server) == []


async def findings(server: NatsServer) -> list[str]:
    """Return the warnings of doctor about garbage collection."""
    async with connect(NatsOptions(servers=(server.url,))) as connection:
        warnings = [check async for check in check_garbage(connection, used_by([FastGarbage()]))]
    assert all(check.result is Result.WARNING for check in warnings)
    return [check.found for check in warnings]


async def owners_are_recorded(js: JetStreamContext) -> bool:
    """Return whether a GC cycle has recorded owners."""
    record = await get(await js.key_value("natsctl"), "gc.fastgarbage")
    return record is not None and record["populated"] is True


# ---- the look for harmful mirrors reads every page of the streams, and no page after the last

PAGE = 256  # streams


async def mirrors(connection: Connection) -> list[str]:
    return [finding.found.split()[1] async for finding in check_mirrors(connection, ["greetings"])]


async def test_mirrors_of_all_pages_are_found_and_of_those_before_an_error(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_eu = {"name": "KV_greetings", "filter_subject": "$KV.greetings.eu.>"}
    offsets: list[object] = []
    async with connect(nats_server.url) as connection:
        api = connection.api

        async def create(name: str, **config: object) -> None:
            config |= {"name": name, "storage": "memory"}
            await api(f"STREAM.CREATE.{name}", config)

        async def noted(endpoint: str, body: dict[str, object], **options: object) -> Any:
            offsets.append(body["offset"])
            if len(offsets) > pages:
                raise StoreTimeoutError("no response in time")
            return await api(endpoint, body, **options)

        await create("KV_greetings", subjects=["$KV.greetings.>"], allow_direct=True)
        for number in range(PAGE):
            await create(f"a{number}")
        for name in ("A", "z"):
            await create(name, mirror=only_eu, mirror_direct=True)
        monkeypatch.setattr(connection, "api", noted)
        pages = 5
        assert await mirrors(connection) == ["A", "z"]
        assert offsets == [0, PAGE]
        offsets.clear()
        pages = 1
        assert await mirrors(connection) == ["A"]
