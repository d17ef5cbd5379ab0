"""Where a request goes: gangs, reserved cells, sites, shortages.

Imports: cells.layout, cells.chain.
"""
