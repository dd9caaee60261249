"""The durable record: verdicts with their outcomes, mail, and the upload queue."""
