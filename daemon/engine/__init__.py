"""The state machine: one step turns inputs into decisions, effects and notices.

Imports: model, lending, sia. Pure.
"""
