"""Web pages, one module for each; `table` lists them.

Imports: doors.web, doors.http, wire.
"""
