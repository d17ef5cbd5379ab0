"""Each pool as if it were alone: first come, first served, in virtual time.

Imports: model.
"""
