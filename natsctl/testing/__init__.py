"""Tests of controllers: memory stores, virtual time, a harness, and simulation under faults."""

from natsctl.testing.cluster import MemoryCluster, MemoryKinds, MemoryManifestStore, MemoryResource
from natsctl.testing.harness import Harness, running
from natsctl.testing.jetstream import MemoryJetStream
from natsctl.testing.memory import Backup, MemoryStore, MemoryStores
from natsctl.testing.replaying.replay import ReplayedSync, ReplayError, replay
from natsctl.testing.simulation.external import ExternalError, SimulatedExternal
from natsctl.testing.simulation.finding import Finding, Report
from natsctl.testing.simulation.objects import StoredObjects, load
from natsctl.testing.simulation.simulate import SimulationError, simulate
from natsctl.testing.time import VirtualTimeLoop, in_virtual_time
from natsctl.testing.watched import MemoryRecorder, RecordedEvent

__all__ = [
    "Backup",
    "ExternalError",
    "Finding",
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
    "ReplayError",
    "ReplayedSync",
    "Report",
    "SimulatedExternal",
    "SimulationError",
    "StoredObjects",
    "VirtualTimeLoop",
    "in_virtual_time",
    "load",
    "replay",
    "running",
    "simulate",
]
