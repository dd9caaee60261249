"""The minimal validator in C, and how it is built and driven from here."""
