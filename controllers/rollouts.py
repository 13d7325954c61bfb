"""Rollouts: gives a configuration to a few sites of a fleet at a time, and stops if one fails.

Every site has an object in the bucket `sites`. The agent of a site watches the site's key in
`site-configs`. It reports the result for a generation in the status of that object:
`{"observedGeneration": 1, "ready": true}`, or an `error`. Only one rollout can own a site.

Run it:       natsctl run --embedded --controller controllers.rollouts:Rollouts
A site:       natsctl put sites berlin '{"metadata": {"labels": {"region": "eu"}}, "spec": {}}'
Roll out:     natsctl put rollouts eu '{"spec": {"sites": {"region": "eu"}, "config": {"v": 2}}}'
See:          natsctl get rollouts eu
"""

import msgspec

from natsctl import Controller, Object, kv, primary, secondary, tertiary

RECHECK_S = 30.0  # a change of a tertiary, such as a new site, enqueues no key


class RolloutSpec(msgspec.Struct, frozen=True, rename="camel"):
    """A configuration, and the labels of the sites that get it, `at_once` sites at a time.

    No further site gets the configuration if `at_once` is 0.
    """

    sites: dict[str, str]
    config: dict[str, object]
    at_once: int = 1


class Rollout(Object, frozen=True):
    """The desired configuration of a part of the fleet."""

    spec: RolloutSpec


class SiteConfigSpec(msgspec.Struct, frozen=True):
    """The configuration of one site."""

    config: dict[str, object]


class SiteConfig(Object, frozen=True):
    """The desired configuration of one site; the agent of the site writes the status."""

    spec: SiteConfigSpec


class SiteSpec(msgspec.Struct, frozen=True):
    """A site has no desired state."""


class Site(Object, frozen=True):
    """A place with an agent; rollouts select it by its labels."""

    spec: SiteSpec = SiteSpec()


class Rollouts(Controller):
    """Gives a configuration to the next sites when the previous ones are ready."""

    rollouts = primary(kv(Rollout, bucket="rollouts"))
    configs = secondary(kv(SiteConfig, bucket="site-configs"))
    sites = tertiary(kv(Site, bucket="sites"))

    async def sync_handler(self, key: str) -> float | None:
        """Give the configuration to the next sites, as far as `at_once` allows."""
        rollout = self.rollouts.get(key)
        if rollout is None:
            return None  # deleted: natsctl deletes its configurations after this returns
        chosen = self._chosen(rollout.spec)
        wanted = SiteConfig(spec=SiteConfigSpec(rollout.spec.config))
        owned = self.configs.owned()
        assigned = {
            site: config
            for site, config in owned.items()
            if site in chosen and config.spec == wanted.spec
        }
        ready = [site for site, config in assigned.items() if _reported(config, "ready")]
        failed = [site for site, config in assigned.items() if _reported(config, "error")]
        room = 0 if failed else rollout.spec.at_once - (len(assigned) - len(ready))
        following = [site for site in chosen if site not in assigned][: max(0, room)]
        for site in following:
            await self.configs.apply(site, wanted)
        for site in owned.keys() - chosen:
            if self.sites.get(site) is not None:  # a site without an object keeps its configuration
                await self.configs.delete(site)
        status = {
            "sites": len(chosen),
            "given": len(assigned) + len(following),
            "ready": len(ready),
        }
        await self.rollouts.update_status(key, {**status, "failed": failed})
        return RECHECK_S

    def _chosen(self, spec: RolloutSpec) -> list[str]:
        """Return the sites with all labels of the rollout, in order."""
        sites = self.sites.items()
        return sorted(
            key for key in sites if spec.sites.items() <= sites[key].metadata.labels.items()
        )


def _reported(config: SiteConfig, field: str) -> bool:
    """Return whether the agent reports *field* for the newest configuration."""
    is_current = config.status.get("observedGeneration") == config.metadata.generation
    return is_current and bool(config.status.get(field))
