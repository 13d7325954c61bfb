"""Runs `natsctl` for `python -m natsctl.cli`."""

from natsctl_main import main

if __name__ == "__main__":
    main()
