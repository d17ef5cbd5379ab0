"""Present one replay: terminal tables and the HTML report.

Imports: run, cluster, plotting.
"""
