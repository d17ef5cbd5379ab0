"""The commands of `sia replay`, `trace`, `experiment`, `forecast`, `compare` and `cells`.

Imports: all of replay.
"""
