"""What crosses the wire: bodies, answers, problems, query parameters and times."""
