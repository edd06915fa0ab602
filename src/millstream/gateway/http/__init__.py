"""What all routes of the gateway share: requests, responses, errors, limits, OpenAPI."""
