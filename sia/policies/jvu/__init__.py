"""JVuSched: one plan for deadlines and best effort; it kills jobs if that gains (JamaisVu)."""
