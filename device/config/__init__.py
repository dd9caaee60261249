"""Reading, describing and changing the configuration file."""
