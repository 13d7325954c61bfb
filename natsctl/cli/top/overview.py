"""The base of the views that show a part of the state of all controllers."""

from natsctl.cli.top.live import LiveScreen
from natsctl.console.answers import Partial, Problem
from natsctl.console.home import Home

NO_DAEMON = Problem("no_daemon", "no daemon answers: start one with natsctl run")


class OverviewScreen(LiveScreen[Home]):
    """A view of a part of the state of all controllers."""

    async def read(self) -> Home:
        """See `LiveScreen.read`."""
        return await self.answers.home()

    def partial(self, answer: Home) -> Partial | None:
        """See `LiveScreen.partial`."""
        return answer.partial

    def problem(self, answer: Home) -> Problem | None:
        """See `LiveScreen.problem`."""
        return NO_DAEMON if answer.no_daemon else None
