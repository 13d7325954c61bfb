"""Speed and size, each beside a peer or a limit measured in the same run."""
