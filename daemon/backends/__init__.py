"""Backends that run jobs, one module or folder for each; `interface` is the contract.

Imports: model, runtime, config, journal. Backends do not import each other.
"""
