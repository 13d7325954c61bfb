"""Lists and watches of a resource."""
