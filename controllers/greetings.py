"""Greetings: makes a Route for every Greeting, and reports that the Greeting is ready.

Run it:       natsctl run --embedded --controller controllers.greetings:Greetings
Greet:        natsctl put greetings shop '{"spec": {"text": "hi"}}'
See:          natsctl get routes
"""

import msgspec

from natsctl import Controller, Object, kv, primary, secondary, tertiary


class GreetingSpec(msgspec.Struct, frozen=True):
    """A text, repeated `replicas` times; `punctuation` overrides that of the defaults."""

    text: str
    replicas: int = 1
    punctuation: str | None = None


class Greeting(Object, frozen=True):
    """The desired greeting."""

    spec: GreetingSpec


class RouteSpec(msgspec.Struct, frozen=True):
    """The NATS subject of a greeting, and its text."""

    subject: str
    payload: str


class Route(Object, frozen=True):
    """A greeting on a subject."""

    spec: RouteSpec


class DefaultsSpec(msgspec.Struct, frozen=True):
    """The values for greetings that do not set their own."""

    punctuation: str = "!"


class Defaults(Object, frozen=True):
    """The defaults of one team, whose name is the key, or of all teams (key `all`)."""

    spec: DefaultsSpec = DefaultsSpec()


class Greetings(Controller):
    """Makes a Route for every Greeting."""

    greetings = primary(kv(Greeting, bucket="greetings"))
    routes = secondary(kv(Route, bucket="routes"))
    defaults = tertiary(kv(Defaults, bucket="defaults"))

    async def sync_handler(self, key: str) -> float | None:
        """Apply the route of a greeting, and mark the greeting ready."""
        greeting = self.greetings.get(key)
        if greeting is None:
            return None  # deleted: natsctl deletes its route after this returns
        payload = (greeting.spec.text + self._punctuation(key, greeting)) * greeting.spec.replicas
        await self.routes.apply(key, Route(spec=RouteSpec(f"hello.{key}", payload)))
        await self.greetings.update_status(key, {"ready": True})
        return None

    def _punctuation(self, key: str, greeting: Greeting) -> str:
        """Return the punctuation of the greeting, of its team, or of all teams."""
        if greeting.spec.punctuation is not None:
            return greeting.spec.punctuation
        team = key.rpartition(".")[0]
        defaults = (self.defaults.get(team) if team else None) or self.defaults.get("all")
        return defaults.spec.punctuation if defaults is not None else "!"
