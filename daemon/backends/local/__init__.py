"""Backend that runs jobs as processes on this machine.

Imports: backends.interface, model, runtime.
"""
