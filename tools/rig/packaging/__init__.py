"""The Debian package: wheels pinned by hash into an environment under /opt, and all that goes round it."""
