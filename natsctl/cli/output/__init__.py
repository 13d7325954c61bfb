"""Output of the commands: tables, JSON, YAML, notices, questions, progress bars."""
