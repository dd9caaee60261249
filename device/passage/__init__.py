"""From a request to a verdict and what the validator answers."""
