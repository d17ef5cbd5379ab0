"""Builds the daemon from its parts and runs it: serve, lead or stand by, demo.

Imports: everything but cli.
"""
