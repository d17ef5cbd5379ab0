"""Figures and number formats; independent of schedules.

Imports: logs.limits.
"""
