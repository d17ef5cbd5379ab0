"""Search for settings of the policy `wfq` by simulation (PCS, §3.3).

Points of a space, samples of a workload, a light simulation, SPEA2, and the front of what is best.
"""
