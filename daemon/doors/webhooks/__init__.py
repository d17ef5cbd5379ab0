"""Webhooks: send events to configured receivers as signed HTTP requests."""
