"""Jobs that are only timers.

Imports: backends.interface, model, config.
"""
