"""Errors of the reference server that are not answers to a request.

CloudError
└── ServerError
    ├── StoreUnavailable     the database is locked, full or broken; the request may be repeated
    ├── OperatorError        a command or a setting that cannot be done; says what to do
    └── HttpSignatureError   a request's signature does not hold
"""

from cloud_client.errors import CloudError


class ServerError(CloudError):
    """Base of the reference server's own errors."""


class StoreUnavailable(ServerError):
    """The database cannot be used right now (locked, full, not readable). Nothing was half-written."""


class OperatorError(ServerError):
    """What an operator asked for cannot be done; the message says what was expected and what to do."""


class HttpSignatureError(ServerError):
    """An HTTP message signature is absent, malformed, stale, or does not verify.

    The message is for the log of a developer; a server never reports the reason to the sender.
    """
