"""The daemon's state as wire values, for HTTP, MQTT and pages alike.

Imports: wire, answers, service. No aiohttp.
"""
