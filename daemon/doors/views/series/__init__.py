"""Time series of use, waits and loans, stored in the journal.

Imports: service, journal, forecasts, model, wire.
"""
