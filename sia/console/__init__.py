"""Shared code of all command lines: errors, times, tables, and the `sia` command itself.

The only folder of `sia/` that uses a terminal. The core does not import it.
"""
