"""SIA and its variants: with recall (§5.5) and with virtual start times (§5.1).

Imports: sia.policies, sia.policies.shared, sia.explain, state.
"""
