"""What a policy is: its interface, proposals and their results, options, and what it may read.

Imports: state.
"""
