"""HTTP interface under /v1, described by OpenAPI. Errors are problem details."""
