"""HTTP: connections, the API and the pages of the admin bind."""
