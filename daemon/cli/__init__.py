"""The commands that talk to a daemon, and `sia serve`.

Imports: wire, process.
"""
