"""Webhooks: what happens is told to receivers that an operator named, by signed HTTP requests."""
