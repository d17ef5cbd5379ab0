"""Why a pending job does not start, as data.

Imports: core, policies, state, model.
"""
