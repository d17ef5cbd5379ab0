"""Why a pending job does not start, as data.

Imports: state, model.
"""
