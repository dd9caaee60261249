"""For developers of the other end of the cable: a simulator, conformance rules, captures, vectors."""
