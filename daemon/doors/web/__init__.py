"""Web pages, rendered from the answers of the HTTP API."""
