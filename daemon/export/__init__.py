"""Export a journal as a job log, and replay it, without a running daemon.

Imports: journal, engine, replay.
"""
