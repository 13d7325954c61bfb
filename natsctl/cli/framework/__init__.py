"""The frame of every command: options, output, exit codes."""
