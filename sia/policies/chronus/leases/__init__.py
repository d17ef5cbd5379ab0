"""Plans of leases: what jobs ask for, lists, programs and the selection (Chronus, §3.3).

Imports: model, program.
"""
