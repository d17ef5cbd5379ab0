"""Commands about when jobs start and end: `sia eta, estimates, whatif` ask, `wfq set` changes it.

Imports: cli.client, cli.common.
"""
