"""Where LINK/1 meets real ports: serial ports, pseudo-terminals, and the loop that drives an end."""
