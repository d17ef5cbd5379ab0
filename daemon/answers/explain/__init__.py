"""Why a job is pending, as data and in words.

Imports: engine, model, wire.
"""
