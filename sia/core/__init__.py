"""The core: applies events to the state, runs decision passes, plays forward, makes snapshots.

Imports: everything in sia except the console.
"""
