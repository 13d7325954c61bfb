"""`python -m natsctl` is `natsctl`."""

from natsctl.cli.framework.interrupts import end_quietly

if __name__ == "__main__":
    end_quietly()

    from natsctl.cli.main import main

    main()
