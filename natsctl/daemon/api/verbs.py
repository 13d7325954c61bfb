"""The verbs that a daemon answers over NATS, and the subject of each."""

from enum import StrEnum

NAME = "natsctl"
API = "natsctl.api"


class Verb(StrEnum):
    """A request to a daemon about one of its controllers.

    Every daemon that runs a controller answers the verbs that read. The leader answers the verbs
    that act. If the controller is sharded, each daemon answers them for its own keys.
    """

    STATUS = "status"
    EXPLAIN = "explain"
    TREE = "tree"
    MANIFEST = "manifest"
    PLAN = "plan"
    RESYNC = "resync"
    RECORD = "record"
    RECORDING = "recording"
    RECORDING_UNMASKED = "recording.unmasked"
    GC_PLAN = "gc.plan"
    GC_APPLY = "gc.apply"
    GC_ACCEPT = "gc.accept"

    def subject(self, controller: str) -> str:
        """Return the subject of requests about that controller."""
        return f"{API}.{self}.{controller}"

    @property
    def acts(self) -> bool:
        """True if only a daemon that works for the controller answers."""
        return self is Verb.RESYNC or self.collects

    @property
    def collects(self) -> bool:
        """True if the verb is about garbage."""
        return self in {Verb.GC_PLAN, Verb.GC_APPLY, Verb.GC_ACCEPT}

    def group(self, *, shared: bool) -> str:
        """Return the queue group; empty if every daemon has to answer.

        If the controller is *shared* among daemons, each of them acts for its own keys, and has the
        values of its own keys only.
        """
        by_one_daemon = {Verb.PLAN, Verb.GC_PLAN}
        by_one_unless_shared = {Verb.TREE, Verb.GC_APPLY, Verb.GC_ACCEPT}
        return (
            NAME if self in by_one_daemon or (self in by_one_unless_shared and not shared) else ""
        )
