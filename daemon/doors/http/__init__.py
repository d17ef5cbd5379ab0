"""The daemon's door: HTTP under /v1, described by OpenAPI; errors as problem details."""
