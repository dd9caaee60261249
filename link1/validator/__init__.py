"""The other end of the cable: what a validator does. No module of the device imports it."""
