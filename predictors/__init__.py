"""Forecasts that the core can be given. They get objects, never files; see `sia.forecasts`."""
