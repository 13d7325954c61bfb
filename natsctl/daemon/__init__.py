"""A process that runs controllers."""
