"""Routes under /v1, one module for each resource.

Imports: doors.http, doors.views, answers, wire.
"""
