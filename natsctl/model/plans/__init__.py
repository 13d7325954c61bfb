"""Plans: what syncs would change, field by field."""
