"""Explanations of policies: what a pending job needs before a pass would start it.

Imports: sia.explain, state.
"""
