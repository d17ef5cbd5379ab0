"""Commands that ask when jobs start, and what a change would do: `sia eta, estimates, whatif`.

Imports: cli.client, cli.common.
"""
