"""One replay shown: terminal tables and the HTML report.

Imports: run, cluster, plotting.
"""
