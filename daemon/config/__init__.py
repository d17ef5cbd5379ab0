"""`sia.toml` as checked values, a module per section.

Imports: model, runtime.
"""
