"""Search for settings of the policy `wfq` by simulation (PCS, §3.3).

Its parts: points of a space of settings, samples of a workload, a fast simulation, the algorithm
SPEA2, and the Pareto front that is found.
"""
