"""Reads and checks `sia.toml`; each section has a module.

Imports: model, runtime.
"""
