"""The types of objects, as daemons publish them or controllers declare them."""
