"""What is kept: verdicts and what became of them, mail, and what waits for the service."""
