"""The operator's page: server-rendered, read-only, signed in with an API key."""
