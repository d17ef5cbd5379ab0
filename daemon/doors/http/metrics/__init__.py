"""Prometheus metrics (`GET /metrics`).

Imports: doors.views, service.
"""
