"""Pages for browsers, made of what the API answers."""
