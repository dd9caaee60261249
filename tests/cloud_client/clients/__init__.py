"""A back office's clients, generated from the served OpenAPI document."""
