"""HTTP of the gateway: requests, responses, errors, limits, access, OpenAPI."""
