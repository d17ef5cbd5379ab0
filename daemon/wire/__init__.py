"""Every request and answer of the interfaces as a struct, and problem details.

Imports: model, config.
"""
