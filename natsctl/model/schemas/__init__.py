"""The types of objects: their schemas, their versions and the paths of their fields."""
