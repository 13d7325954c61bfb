"""Computes the NATS permissions of a daemon with some controllers, of its operators and viewers.

Each subject is one that the user publishes or subscribes to; nothing else is allowed.
"""

from collections.abc import Iterable, Iterator, Sequence

from natsctl.controller.controller import Controller
from natsctl.controller.slots import makes_secondaries
from natsctl.daemon.kinds import kinds_of
from natsctl.daemon.messages import API, NAME, Verb
from natsctl.daemon.operator import Runnable
from natsctl.daemon.settings.settings import Settings
from natsctl.jetstream.events import PREFIX, STREAM
from natsctl.jetstream.service import ROOT
from natsctl.jetstream.store import LEASES
from natsctl.managed import ManagedController
from natsctl.model.kinds import KvKind
from natsctl.model.schemas.kind_schema import SCHEMAS

Part = tuple[str, Sequence[str]]
"""A comment, and the subjects that it's about."""

READ = ("STREAM.INFO.{}", "STREAM.MSG.GET.{}", "CONSUMER.CREATE.{}.>", "CONSUMER.DELETE.{}.*")
"""The requests of somebody who reads and watches a stream."""


def nats_configuration(
    controllers: Sequence[Controller | Runnable], settings: Settings
) -> list[str]:
    """Return the lines of a nats-server's `accounts` with a user for each role.

    The users are `daemon`, which runs these controllers, `operator` and `viewer`; the password of
    each is a variable of the server's environment, such as `DAEMON_PASSWORD`.
    """
    of = _Permissions(controllers, settings)
    users = (
        ("daemon", of.daemon(), of.served()),
        ("operator", of.operator(), None),
        ("viewer", of.viewer(), None),
    )
    lines = ["accounts: {", "  plants: {", "    jetstream: enabled", "    users: ["]
    for name, parts, served in users:
        lines += [f"      {{\n        user: {name}", f"        password: ${name.upper()}_PASSWORD"]
        lines += ["        permissions: {", "          publish: {", *_allow(parts), "          }"]
        if served is None:
            lines.append(f'          subscribe: {{ allow: ["{of.inbox}"] }}')
        else:
            lines += ["          subscribe: {", *_allow([("", [of.inbox]), *served]), "          }"]
            lines += [
                "          # it answers each request once, and the flow control of the server",
                '          allow_responses: { max: 1, expires: "1m" }',
            ]
        lines += ["        }", "      }"]
    return "\n".join([*lines, "    ]", "  }", "}"]).split("\n")


def _allow(parts: Iterable[Part]) -> Iterator[str]:
    yield "            allow: ["
    for comment, subjects in parts:
        if subjects and comment:
            yield f"              # {comment}"
        yield from (f'              "{subject}"' for subject in dict.fromkeys(subjects))
    yield "            ]"


class _Permissions:
    def __init__(self, controllers: Sequence[Controller | Runnable], settings: Settings) -> None:
        self._names = [one.name for one in controllers]
        used = [
            (use, use.kind)
            for one in controllers
            for use in kinds_of(one)
            if isinstance(use.kind, KvKind)
        ]
        self._buckets = list({kind.bucket: None for _, kind in used})
        self._written = [f"{kind.bucket}.{kind.keys}" for use, kind in used if use.written]
        self._primaries = list({kind.bucket: None for use, kind in used if use.role == "primary"})
        self._collecting = [
            one.name
            for one in controllers
            if isinstance(one, Controller) and makes_secondaries(type(one))
        ]
        self._managing = any(isinstance(one, ManagedController) for one in controllers)
        self._leases = settings.controllers.leader_elect or settings.controllers.shard
        self._shard = settings.controllers.shard
        domain = settings.nats.domain
        self._api = f"$JS.{domain}.API." if domain else "$JS.API."
        self._kv = f"$JS.{domain}.API.$KV." if domain else "$KV."
        self.inbox = f"{settings.nats.inbox_prefix}.>"

    def _streams(self, requests: Iterable[str], streams: Iterable[str]) -> list[str]:
        names = list(streams)
        return [self._api + request.format(name) for request in requests for name in names]

    def _read(self, buckets: Sequence[str], *, create: bool = False) -> list[str]:
        info, *others = READ
        requests = [info, *(["STREAM.CREATE.{}"] if create else []), *others]
        streams = [f"KV_{bucket}" for bucket in buckets]
        flow = [f"$JS.FC.{stream}.>" for stream in streams]
        return [*self._streams(requests, streams), *flow]

    def daemon(self) -> Iterator[Part]:
        own = [*self._buckets, SCHEMAS.bucket]
        yield (
            "its buckets and the bucket natsctl: inspect, create, read, watch",
            self._read(own, create=True),
        )
        records = [
            *(f"gc.{name}" for name in self._collecting),
            *(f"controllers.{name}.>" for name in self._names),
            *(f"lease.{name}" for name in self._names if self._leases),
            *(f"links.natsctl_io.{one}.>" for one in self._primaries if self._managing),
            *("installation", "schema.>"),
        ]
        written = [*self._written, *(f"{SCHEMAS.bucket}.{record}" for record in records)]
        yield "its writes", [self._kv + keys for keys in written]
        if self._leases:
            requests = ["STREAM.INFO.{}", "STREAM.CREATE.{}", "STREAM.MSG.GET.{}"]
            stream = f"KV_{LEASES.bucket}"
            watched = ["CONSUMER.CREATE.{}.>", "CONSUMER.DELETE.{}.*"] if self._shard else []
            flow = [f"$JS.FC.{stream}.>"] if self._shard else []
            leases = self._streams([*requests, *watched], [stream])
            yield "its leases", [*leases, *flow, f"{self._kv}{LEASES.bucket}.>"]
        requests = ["STREAM.INFO.{}", "STREAM.CREATE.{}", "STREAM.MSG.GET.{}"]
        events = [f"{PREFIX}.{name}.>" for name in self._names]
        yield "its events", [*self._streams(requests, [STREAM]), *events]
        peers = [Verb.STATUS.subject(name) for name in self._names]
        yield "finds other daemons that sync the same keys", peers

    def served(self) -> Iterator[Part]:
        service = [f"{ROOT}.*", f"{ROOT}.*.{NAME}", f"{ROOT}.*.{NAME}.*"]
        verbs = [f"{API}.*.{name}" for name in self._names]
        verbs += [f"{API}.gc.*.{name}" for name in self._collecting]
        verbs += [f"{API}.recording.*.{name}" for name in self._names]
        yield "its NATS service", [*service, *verbs]

    def operator(self) -> Iterator[Part]:
        verbs = [f"{API}.*.{name}" for name in self._names]
        verbs += [f"{API}.gc.*.{name}" for name in self._collecting]
        asked = "natsctl status, describe, plan, resync, gc, replay"
        yield asked, [f"{ROOT}.INFO.{NAME}", *verbs]
        objects = [*self._read(self._primaries), *(f"{self._kv}{one}.>" for one in self._primaries)]
        yield "natsctl get, put, apply, edit, label, delete, diff, wait, history", objects
        requests = ["STREAM.INFO.{}", "STREAM.MSG.GET.{}"]
        schemas = self._streams(requests, [f"KV_{SCHEMAS.bucket}"])
        yield "the schemas with which natsctl validates objects", schemas
        records = [f"{self._kv}{SCHEMAS.bucket}.controllers.{name}.>" for name in self._names]
        yield "natsctl pause, resume", records
        yield "natsctl events", self._events()

    def viewer(self) -> Iterator[Part]:
        read = (Verb.STATUS, Verb.EXPLAIN, Verb.TREE)
        verbs = [verb.subject(name) for name in self._names for verb in read]
        yield "natsctl status, describe", [f"{ROOT}.INFO.{NAME}", *verbs]
        yield "natsctl events", self._events()

    def _events(self) -> list[str]:
        create = f"{self._api}CONSUMER.CREATE.{STREAM}.*.{PREFIX}"
        return [f"{create}.{name}.>" for name in self._names]
