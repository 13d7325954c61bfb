"""Commands with long work draw a progress bar on a terminal, and nothing elsewhere."""

import json

from tests.support.cli.natsctl_command import Natsctl

GREETINGS = "controllers.greetings:Greetings"
SHOPS = "tests.support.controllers.shop_versions:Shops"
CLEARED = "\x1b[2K"  # the last thing that a bar writes

WORDS = {
    "planning": ("plan", "-c", GREETINGS),
    "migrating shops": ("migrate", "-c", SHOPS),
    "simulating": ("simulate", "-c", GREETINGS, "-f", "greetings.yaml", "--runs", "3"),
}
SPECS = {"greetings": {"text": "hi"}, "shops": {"image": "nginx"}, "signs": {"image": "nginx"}}


async def test_a_terminal_shows_the_progress_until_the_last_step(natsctl: Natsctl) -> None:
    greeting = "{bucket: greetings, key: shop, spec: {text: hi}}"
    (natsctl.folder / "greetings.yaml").write_text(greeting)
    objects = [{"bucket": b, "key": key, "spec": SPECS[b]} for b in SPECS for key in "abc"]
    await natsctl.done("apply", "-f", "-", "--create-bucket", stdin=json.dumps(objects))
    for label, words in WORDS.items():
        elsewhere = await natsctl(*words, *(["--dry-run"] if label == "migrating shops" else []))
        assert (elsewhere.status, elsewhere.err) == (0, "")
        result = await natsctl.drawn(*words)
        assert result.status == 0, result
        assert label in result.err
        assert "3/3" in result.err
        assert result.err.endswith(CLEARED)
        assert label not in result.out
