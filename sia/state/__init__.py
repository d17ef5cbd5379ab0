"""The state of a cluster: jobs, pools, groups, loans and placements.

Imports: model, events, cells. Only `sia.core.commit` writes it.
"""
