"""What a job log looks like: hours, widths, bursts.

Imports: logs, run, plotting.
"""
