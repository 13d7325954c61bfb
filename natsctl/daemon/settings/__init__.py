"""The settings of a process, and where they come from."""
