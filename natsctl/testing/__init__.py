"""Tests of controllers: stores in memory, virtual time, and a harness that runs a controller."""

from natsctl.testing.cluster import MemoryCluster, MemoryManifestStore
from natsctl.testing.harness import Harness, running
from natsctl.testing.jetstream import MemoryJetStream
from natsctl.testing.kinds import MemoryKinds, MemoryResource
from natsctl.testing.memory import Backup, MemoryStore, MemoryStores
from natsctl.testing.recorder import MemoryRecorder, RecordedEvent
from natsctl.testing.time import VirtualTimeLoop, in_virtual_time

__all__ = [
    "Backup",
    "Harness",
    "MemoryCluster",
    "MemoryJetStream",
    "MemoryKinds",
    "MemoryManifestStore",
    "MemoryRecorder",
    "MemoryResource",
    "MemoryStore",
    "MemoryStores",
    "RecordedEvent",
    "VirtualTimeLoop",
    "in_virtual_time",
    "running",
]
