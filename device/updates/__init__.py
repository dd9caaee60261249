"""Updates of models and software: received, verified, tried, and rolled back."""
