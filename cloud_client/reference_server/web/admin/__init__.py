"""The admin bind: metrics, health, the reference page and the operator's page."""
