"""Runs `natsctl` for `python -m natsctl`."""

from natsctl_main import main

if __name__ == "__main__":
    main()
