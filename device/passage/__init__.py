"""Transactions: from a request to a verdict, and the validator's answers to it."""
