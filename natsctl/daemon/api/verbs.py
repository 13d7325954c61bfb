"""The verbs that a daemon answers over NATS, and the subject of each."""

from enum import StrEnum

NAME = "natsctl"
API = "natsctl.api"


class Verb(StrEnum):
    """A request to a daemon about one of its controllers.

    Every daemon that runs a controller answers the verbs that read. The verbs that act are answered
    by the leader, or by each daemon for its own keys if the daemons share them.
    """

    STATUS = "status"
    EXPLAIN = "explain"
    TREE = "tree"
    RESYNC = "resync"
    GC_PLAN = "gc.plan"
    GC_APPLY = "gc.apply"
    GC_ACCEPT = "gc.accept"

    def subject(self, controller: str) -> str:
        """Return the subject of requests about that controller."""
        return f"{API}.{self}.{controller}"

    @property
    def acts(self) -> bool:
        """Whether only a daemon that leads the controller answers."""
        return self is Verb.RESYNC or self.collects

    @property
    def collects(self) -> bool:
        """Whether the verb is about garbage."""
        return self in {Verb.GC_PLAN, Verb.GC_APPLY, Verb.GC_ACCEPT}

    def group(self, *, shared: bool) -> str:
        """Return the queue group if the answer of one daemon is enough, else an empty text.

        If daemons share the keys, each of them acts for its own.
        """
        one = {Verb.TREE, Verb.GC_PLAN}
        each = {Verb.GC_APPLY, Verb.GC_ACCEPT}
        return NAME if self in one or (self in each and not shared) else ""
