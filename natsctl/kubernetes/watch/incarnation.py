"""Telling a cluster from the one that it was before its store fell back to a backup."""


class Identity:
    """Names the incarnation of one kind's objects at a server.

    Revisions only grow. Where a consistent list is behind what was seen before, they have been
    made anew, and old ones mean nothing now.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._fallbacks = 0
        self._reached = 0

    def __str__(self) -> str:
        return f"{self._server}#{self._fallbacks}" if self._fallbacks else self._server

    def reached(self, revision: int) -> None:
        """Remember that *revision* was seen."""
        self._reached = max(self._reached, revision)

    def fell_back(self, revision: int) -> bool:
        """Say whether a server that is at *revision* now is another incarnation than before.

        It is then the one that is meant from now on.
        """
        fell_back = revision < self._reached
        if fell_back:
            self._fallbacks += 1
            self._reached = 0
        self.reached(revision)
        return fell_back
