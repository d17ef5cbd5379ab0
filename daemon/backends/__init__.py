"""What runs jobs, one module or folder a kind; `interface` is the contract.

Imports: model, runtime, config, journal. Backends do not import each other.
"""
