"""Process plumbing: clock, log, background tasks, health, rate limits, TLS contexts.

Imports: model.
"""
