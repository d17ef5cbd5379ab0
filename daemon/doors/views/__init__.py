"""Convert the daemon's state to wire structs, for HTTP, MQTT and pages alike.

Imports: wire, answers, service. No aiohttp.
"""
