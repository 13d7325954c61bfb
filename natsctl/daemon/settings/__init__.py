"""Settings, their sources and their precedence."""
