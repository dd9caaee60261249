"""palm-syncd: the process with network access, which carries data between the core and the service."""
