"""Virtual clocks: each pool's baseline schedule in virtual time.

Imports: model.
"""
