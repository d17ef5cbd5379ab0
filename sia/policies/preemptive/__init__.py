"""Policies that stop or resize running jobs: SRTF, SRSF, LAS and elastic max-min.

Imports: shared.
"""
