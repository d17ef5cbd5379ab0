"""A journal as a job log, and replays of it, without a running daemon.

Imports: journal, engine, replay.
"""
