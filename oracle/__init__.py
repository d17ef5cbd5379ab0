"""The offline optimum and its bounds: what anyone could gain who knew the future (§4.1)."""
