"""`GET /metrics`.

Imports: doors.views, service.
"""
