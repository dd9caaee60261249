"""Mail that the partner carries between the service and its devices."""
