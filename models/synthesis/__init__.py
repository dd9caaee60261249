"""Procedural people and the frames a camera would see of their hands.

Nothing here is, or is derived from, a picture of a person. The geometry of the three main creases is sampled
from published statistics of 1000 labelled palms (see ``crease_stats.json``); everything else is invented.
"""
