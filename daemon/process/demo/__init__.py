"""`sia demo`: a daemon that simulates the jobs of a made-up company, without end.

Imports: process, replay.synthetic, and what a daemon consists of.
"""
