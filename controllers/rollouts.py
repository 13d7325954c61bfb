"""Rollouts: a configuration reaches a fleet a few sites at a time, and stops where one fails.

Every site has an object in the bucket `sites`. Its agent watches the site's own key in
`site-configs`, and reports in the status there what came of the generation it has seen:
`{"observedGeneration": 1, "ready": true}`, or an `error`. Two rollouts cannot have one site.

Run it:       natsctl run --embedded --controller controllers.rollouts:Rollouts
A site:       natsctl put sites berlin '{"metadata": {"labels": {"region": "eu"}}, "spec": {}}'
Roll out:     natsctl put rollouts eu '{"spec": {"sites": {"region": "eu"}, "config": {"v": 2}}}'
See:          natsctl get rollouts eu
"""

import msgspec

from natsctl import Controller, Object, kv, primary, secondary, tertiary

LOOK_AGAIN_S = 30.0  # sites come and go, and being tertiaries they wake nobody


class RolloutSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Which sites get what, by their labels; with `at_once` 0 no more sites get it."""

    sites: dict[str, str]
    config: dict[str, object]
    at_once: int = 1


class Rollout(Object, frozen=True):
    """What a part of the fleet should run."""

    spec: RolloutSpec


class SiteConfigSpec(msgspec.Struct, frozen=True):
    """What one site should run."""

    config: dict[str, object]


class SiteConfig(Object, frozen=True):
    """What one site should run; its status is the agent's."""

    spec: SiteConfigSpec


class SiteSpec(msgspec.Struct, frozen=True):
    """Nothing is asked of a site."""


class Site(Object, frozen=True):
    """A place with an agent; its labels say which."""

    spec: SiteSpec = SiteSpec()


class Rollouts(Controller):
    """Gives a rollout's configuration to its sites, to the next when the last are ready."""

    rollouts = primary(kv(Rollout, bucket="rollouts"))
    configs = secondary(kv(SiteConfig, bucket="site-configs"))
    sites = tertiary(kv(Site, bucket="sites"))

    async def sync_handler(self, key: str) -> float | None:
        """Go one step on: give the configuration to as many sites as may be under way."""
        rollout = self.rollouts.get(key)
        if rollout is None:
            return None  # its sites' configurations are removed after this returns
        chosen = self._chosen(rollout.spec)
        wanted = SiteConfig(spec=SiteConfigSpec(rollout.spec.config))
        owned = self.configs.owned()
        given = {
            site: at for site, at in owned.items() if site in chosen and at.spec == wanted.spec
        }
        ready = [site for site, at in given.items() if _reported(at, "ready")]
        failed = [site for site, at in given.items() if _reported(at, "error")]
        room = 0 if failed else rollout.spec.at_once - (len(given) - len(ready))
        following = [site for site in chosen if site not in given][: max(0, room)]
        for site in following:
            await self.configs.apply(site, wanted)
        for site in owned.keys() - chosen:
            if self.sites.get(site) is not None:  # a site that is not known just now keeps it
                await self.configs.delete(site)
        status = {"sites": len(chosen), "given": len(given) + len(following), "ready": len(ready)}
        await self.rollouts.update_status(key, {**status, "failed": failed})
        return LOOK_AGAIN_S

    def _chosen(self, spec: RolloutSpec) -> list[str]:
        """Return the sites that have every label asked for, in order."""
        sites = self.sites.items()
        return sorted(
            key for key in sites if spec.sites.items() <= sites[key].metadata.labels.items()
        )


def _reported(config: SiteConfig, field: str) -> bool:
    """Say whether the agent reports it of the configuration as it is now."""
    seen = config.status.get("observedGeneration") == config.metadata.generation
    return seen and bool(config.status.get(field))
