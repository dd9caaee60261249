"""palm-syncd: the one process with a network, which carries between the core and the service."""
