"""Proofs of the cable's protocol: a model of LINK/1 for Spin, a search for an attacker, a reader of captures.

docs/explanation/PROTOCOL_MODEL.md explains them. `python -m tools.rig.model` runs the model; never on a
device.
"""
