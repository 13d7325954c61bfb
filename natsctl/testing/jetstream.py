"""A JetStream API in memory: streams and consumers as configurations, without messages."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from natsctl.errors import NotFoundError, StoreError, StoreMissingError
from natsctl.model.keys import overlap

Config: TypeAlias = dict[str, Any]

STREAM_DEFAULTS: Config = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
    "compression": "none",
    "allow_direct": False,
    "mirror_direct": False,
    "sealed": False,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": False,
}
CONSUMER_DEFAULTS: Config = {
    "deliver_policy": "all",
    "ack_policy": "none",
    "max_deliver": -1,
    "replay_policy": "instant",
    "max_waiting": 512,
    "num_replicas": 0,
}
_STREAM_FIXED = {"storage": "storage type", "retention": "retention policy"}
_CONSUMER_FIXED = {
    "deliver_policy": "deliver policy",
    "ack_policy": "ack policy",
    "replay_policy": "replay policy",
}

_READS = {"INFO", "NAMES", "LIST"}  # verbs that change nothing


class MemoryJetStream:
    """Streams and consumers that an API request creates, updates, reads and deletes; a `JetStream`.

    It answers the requests `STREAM.CREATE`, `UPDATE`, `INFO`, `DELETE`, `NAMES` and `LIST`,
    `CONSUMER.CREATE`, `INFO`, `DELETE`, `NAMES` and `LIST`, and `INFO`, each followed by its names
    as on a server: `STREAM.INFO.orders`, `CONSUMER.INFO.orders.billing`. Configurations get the
    server's defaults. Streams have no messages, and nobody validates the values of fields.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        """The endpoints of all requests, oldest first."""
        self._streams: dict[str, _Stream] = {}
        self._failure: StoreError | None = None

    async def api(self, endpoint: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Answer a request; see `JetStream.api`.

        Raises `StoreMissingError` if there is no such stream, `NotFoundError` if there is no such
        consumer, and `StoreError` with the server's text if the request is invalid.
        """
        self.requests.append(endpoint)
        await asyncio.sleep(0)
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        match endpoint.split("."), dict(body or {}):
            case ["INFO"], _:
                consumers = sum(len(stream.consumers) for stream in self._streams.values())
                return {"streams": len(self._streams), "consumers": consumers}
            case ["STREAM", verb, *names], config:
                answer = self._stream_request(verb, ".".join(names), config)
            case ["CONSUMER", verb, stream, *names], request:
                known = self._existing(stream)
                answer = _consumer_request(known, verb, ".".join(names), request)
            case _:
                answer = None
        if answer is None:
            raise StoreError(f"{endpoint}: the JetStream API in memory has no such request")
        return answer

    def fail(self, error: StoreError | None) -> None:
        """Fail every request with *error*, until this is called with None."""
        self._failure = error

    def streams(self) -> list[str]:
        return sorted(self._streams)

    def consumers(self, stream: str) -> list[str]:
        """Return the names of a stream's consumers, in order; empty if there is no such stream."""
        return sorted(self._streams[stream].consumers) if stream in self._streams else []

    def configurations(self) -> dict[str, Config]:
        """Return the configuration of each stream, and of each consumer as `STREAM/CONSUMER`."""
        configs: dict[str, Config] = {}
        for name, stream in sorted(self._streams.items()):
            configs[name] = stream.config
            configs |= {f"{name}/{key}": config for key, config in sorted(stream.consumers.items())}
        return configs

    def _stream_request(self, verb: str, name: str, config: Config) -> Config | None:
        match verb:
            case "NAMES" | "LIST":
                names = self.streams()
                infos = [self._streams[stream].info() for stream in names]
                return {"streams": names if verb == "NAMES" else infos, "total": len(names)}
            case "CREATE":
                wanted = self._stream_config(name, config)
                stream = self._streams.get(name)
                if stream is not None and stream.config != wanted:
                    raise _error("stream name already in use with a different configuration", 10058)
                return self._streams.setdefault(name, _Stream(wanted)).info()
            case "UPDATE":
                stream = self._existing(name)
                wanted = self._stream_config(name, config)
                for field, words in _STREAM_FIXED.items():
                    if wanted[field] != stream.config[field]:
                        raise _error(f"stream configuration update can not change {words}", 10052)
                stream.config = wanted
                return stream.info()
            case "INFO":
                return self._existing(name).info()
            case "DELETE":
                self._existing(name)
                del self._streams[name]
                return {"success": True}
            case _:
                return None

    def _stream_config(self, name: str, config: Config) -> Config:
        if config.get("name") != name:
            raise _error("stream name in subject does not match request", 10056)
        wanted = {"subjects": [name], **STREAM_DEFAULTS, **config}
        others = (stream.config for stream in self._streams.values())
        taken = [s for other in others if other["name"] != name for s in other["subjects"]]
        if any(overlap(ours, theirs) for ours in wanted["subjects"] for theirs in taken):
            raise _error("subjects overlap with an existing stream", 10065)
        return wanted

    def _existing(self, name: str) -> "_Stream":
        if name not in self._streams:
            raise StoreMissingError("stream not found (10059)")
        return self._streams[name]


def changes_something(endpoint: str) -> bool:
    """Return whether a request to this endpoint changes a stream or a consumer."""
    return _READS.isdisjoint(endpoint.split(".")[:2])


class _Stream:
    """A stream's configuration, and those of its consumers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.consumers: dict[str, Config] = {}
        self._created = datetime.now(UTC).isoformat()

    def info(self) -> dict[str, Any]:
        state = {"messages": 0, "bytes": 0, "first_seq": 0, "last_seq": 0}
        return {
            "config": dict(self.config),
            "created": self._created,
            "state": {**state, "consumer_count": len(self.consumers)},
        }

    def consumer_info(self, name: str) -> dict[str, Any]:
        if name not in self.consumers:
            raise NotFoundError("consumer not found (10014)")
        return {
            "stream_name": self.config["name"],
            "name": name,
            "config": dict(self.consumers[name]),
            "num_ack_pending": 0,
            "num_pending": 0,
        }


def _consumer_request(stream: _Stream, verb: str, name: str, request: Config) -> Config | None:
    match verb:
        case "NAMES":
            return {"consumers": sorted(stream.consumers), "total": len(stream.consumers)}
        case "LIST":
            infos = [stream.consumer_info(consumer) for consumer in sorted(stream.consumers)]
            return {"consumers": infos, "total": len(infos)}
        case "CREATE":
            wanted = {**CONSUMER_DEFAULTS, **request["config"]}
            before = stream.consumers.get(name)
            action = request.get("action", "")
            if before is None and action == "update":
                raise _error("consumer does not exist", 10149)
            if before is not None and action == "create" and before != wanted:
                raise _error("consumer already exists", 10148)
            for field, words in _CONSUMER_FIXED.items():
                if before is not None and before[field] != wanted[field]:
                    raise _error(f"{words} can not be updated", 10012)
            stream.consumers[name] = wanted
            return stream.consumer_info(name)
        case "INFO":
            return stream.consumer_info(name)
        case "DELETE":
            stream.consumer_info(name)
            del stream.consumers[name]
            return {"success": True}
        case _:
            return None


def _error(text: str, code: int) -> StoreError:
    return StoreError(f"{text} ({code})")
