"""Jobs in Slurm, by slurmrestd or Slurm's commands.

Imports: backends.interface, model, runtime, config, journal.
"""
