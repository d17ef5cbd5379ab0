"""The offline optimum and its bounds, with full knowledge of the future (§4.1)."""
