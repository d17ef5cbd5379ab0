"""What sharing costs: virtual clocks, accounts, delayed jobs, shadow lending.

Imports: model. Pure.
"""
