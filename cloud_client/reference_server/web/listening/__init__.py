"""Connections: accepting, reading and ending them among strangers."""
