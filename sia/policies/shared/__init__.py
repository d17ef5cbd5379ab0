"""What several policies share: queues, rankings, searches.

Imports: sia.policies, state.
"""
