"""Interfaces of the daemon: HTTP, web pages, MQTT and webhooks.

Imports: answers, service and below.
"""
