"""What a simulated gate raises, in addition to the errors of the client and of a device's parts.

SimulationError     a gate of the folder cannot do what was asked; the message says what to do
└── GateWiped       the gate was revoked, and has nothing left to act with
"""


class SimulationError(Exception):
    """A simulated gate cannot do what was asked."""

    exit_code = 1


class GateWiped(SimulationError):
    """The service revoked the gate: it destroyed its keys and its gallery, and acknowledged that."""
