"""The routes under /v1, a module per resource.

Imports: doors.http, doors.views, answers, wire.
"""
