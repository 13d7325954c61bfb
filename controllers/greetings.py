"""Greetings: every Greeting in a bucket becomes a Route in another, and knows that it is ready.

Run it:       natsctl run --embedded --controller controllers.greetings:Greetings
Greet:        natsctl put greetings shop '{"spec": {"text": "hi"}}'
See:          natsctl list routes
"""

import msgspec

from natsctl import Controller, Object, kv, primary, secondary, tertiary


class GreetingSpec(msgspec.Struct, frozen=True):
    """What is said, and how often; the punctuation is a default's where it is not given."""

    text: str
    replicas: int = 1
    punctuation: str | None = None


class Greeting(Object, frozen=True):
    """What should be said."""

    spec: GreetingSpec


class RouteSpec(msgspec.Struct, frozen=True):
    """Where a greeting is heard, and what it says."""

    subject: str
    payload: str


class Route(Object, frozen=True):
    """What is said where."""

    spec: RouteSpec


class DefaultsSpec(msgspec.Struct, frozen=True):
    """What greetings have that do not say otherwise."""

    punctuation: str = "!"


class Defaults(Object, frozen=True):
    """Defaults of one team, or of everybody: the key is the team, or `all`."""

    spec: DefaultsSpec = DefaultsSpec()


class Greetings(Controller):
    """Every Greeting becomes a Route; its status says that it is ready."""

    greetings = primary(kv(Greeting, bucket="greetings"))
    routes = secondary(kv(Route, bucket="routes"))
    defaults = tertiary(kv(Defaults, bucket="defaults"))

    async def sync_handler(self, key: str) -> float | None:
        """Make the route say what the greeting says."""
        greeting = self.greetings.get(key)
        if greeting is None:
            return None  # its route is removed after this returns
        payload = (greeting.spec.text + self._punctuation(key, greeting)) * greeting.spec.replicas
        await self.routes.apply(key, Route(spec=RouteSpec(f"hello.{key}", payload)))
        await self.greetings.update_status(key, {"ready": True})
        return None

    def _punctuation(self, key: str, greeting: Greeting) -> str:
        """Return the greeting's own, its team's or everybody's."""
        if greeting.spec.punctuation is not None:
            return greeting.spec.punctuation
        team = key.rpartition(".")[0]
        found = (self.defaults.get(team) if team else None) or self.defaults.get("all")
        return found.spec.punctuation if found is not None else "!"
