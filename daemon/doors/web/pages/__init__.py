"""The web pages, a module per page; `table` lists them.

Imports: doors.web, doors.http, wire.
"""
