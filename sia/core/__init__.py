"""The core: apply events to the state, run one decision pass, play it forward, snapshot it.

Imports: everything in sia but the console.
"""
