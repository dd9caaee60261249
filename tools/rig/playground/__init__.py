"""The playground: a whole operator in one process and virtual time, driven and watched from one page."""
