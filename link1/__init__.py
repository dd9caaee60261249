"""LINK/1: the contract on the ground between the access device and the validator.

Canonical bytes, keys, signed objects, sealed records, frames and sessions. The cores do no input or
output and read no clock; `link1.transport` is the edge where ports live.
"""
