"""The commands of `sia oracle`.

Imports: all of oracle.
"""
