"""What the service does, from its keys at the bottom to people at the top."""
