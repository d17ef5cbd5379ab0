"""Where a request is placed: gangs, reservations, sites, shortages.

Imports: cells.layout, cells.chain.
"""
