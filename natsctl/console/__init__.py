"""The console: a page that shows controllers and their objects, served to one user."""
