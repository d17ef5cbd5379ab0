"""What every command line shares: errors, times, tables, and the `sia` command itself.

The one folder of `sia/` that talks to a terminal; the core does not import it.
"""
