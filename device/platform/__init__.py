"""What the device takes from Linux: clocks, files, sockets, memory, logs, threads, heat."""
