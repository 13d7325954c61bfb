"""The framework of all commands: options, help, exit codes, interrupts."""
