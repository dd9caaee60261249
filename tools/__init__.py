"""What people type: the technician's command line, simulators and benches."""
