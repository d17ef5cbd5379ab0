"""Slurm backend, over slurmrestd or Slurm's commands.

Imports: backends.interface, model, runtime, config, journal.
"""
