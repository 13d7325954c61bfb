"""Shows controllers and failing keys live in a terminal."""
