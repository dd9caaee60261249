"""Running the server, and what an operator does to its store."""
