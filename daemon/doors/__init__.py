"""How people and programs reach the daemon: HTTP, web pages, MQTT, webhooks.

Imports: answers, service and below.
"""
