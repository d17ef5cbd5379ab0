"""STRL: expressions of what jobs may get and what that is worth, as text and as programs (§4.1)."""
