"""The watches of the objects that a sync reads."""
