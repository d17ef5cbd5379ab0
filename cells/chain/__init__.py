"""Buddy allocation within one chain of cell types.

Imports: cells.layout.
"""
