"""JVuSched: deadlines and best effort in one plan, which kills where that pays (JamaisVu)."""
