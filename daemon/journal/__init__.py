"""Durable storage: tables, SQLite and PostgreSQL, snapshots, recovery, the audit chain.

Imports: engine, config, model, runtime.
"""
