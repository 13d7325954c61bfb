"""Plans: runs controllers over stores that keep their writes in memory."""
