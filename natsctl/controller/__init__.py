"""The main surface: a controller with primary, secondary and tertiary objects."""
