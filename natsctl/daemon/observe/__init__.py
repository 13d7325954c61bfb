"""Log lines, spans and the watchdog of a process."""
