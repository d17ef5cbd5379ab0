"""Drawing figures and writing numbers; knows nothing of schedules.

Imports: logs.limits.
"""
