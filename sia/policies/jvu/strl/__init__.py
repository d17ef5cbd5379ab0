"""STRL: expressions for the choices of jobs and their values, as text and as programs (§4.1)."""
