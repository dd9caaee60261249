"""For those who build the other end of the cable: a simulator, conformance rules, captures, vectors."""
