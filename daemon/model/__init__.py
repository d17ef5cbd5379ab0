"""Values that the journal, the engine and the wire share: jobs, pools, tokens, inputs, outputs.

Imports: sia, cells. Pure.
"""
