"""Sample controllers, and the external systems that they manage."""
