"""Which GPUs of which nodes jobs get (Chronus, §3.4).

Imports: leases, contract, state.
"""
