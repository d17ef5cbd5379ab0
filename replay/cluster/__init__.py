"""Cells files, and which job holds which GPUs at a time.

Imports: logs, plotting.
"""
