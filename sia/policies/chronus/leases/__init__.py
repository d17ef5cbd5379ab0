"""Plans of leases: claims, list scheduling, programs and the selection (Chronus, §3.3).

Imports: model, program.
"""
