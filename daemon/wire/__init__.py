"""Wire format of the interfaces: a struct for each request and response, and problem details.

Imports: model, config.
"""
