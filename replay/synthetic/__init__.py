"""Generated job logs: the paper's presets and a cloud of users.

Imports: logs.
"""
