"""`python -m natsctl.cli` is `natsctl`."""

from natsctl.cli.main import main

main()
