"""The database: its engines, its tables, and the keys that what is in it is sealed under."""
