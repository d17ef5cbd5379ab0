"""How fairly jobs were treated: finish-time fairness of any schedule, by three measures.

Imports: logs.
"""
