"""What a command writes: tables, JSON, YAML, questions."""
