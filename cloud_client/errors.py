"""Errors of the cloud side."""


class CloudError(Exception):
    """Base of every error raised by ``cloud_client``. `retry_after_s`: the wait that the service asks for."""

    retry_after_s: float = 0.0


class ServerAddressError(CloudError):
    """The configured address of the service, or its CA file, cannot be used."""


class CloudUnreachable(CloudError):
    """No whole answer came. The request may have been carried out: repeat it with the same key and body."""


class CloudAnswerError(CloudError):
    """An answer outside the contract: too large, no JSON, or a status that the route does not have."""


class CloudProblem(CloudError):
    """The service refused a request (partner API, Errors).

    `status` is the HTTP status, `code` the stable word to act on ("" when the answer was no problem
    document, as from a proxy), `retryable` what the service says, `retry_after_s` the seconds it asks to wait
    (0 when it does not, 15 minutes at most), `request_id` what to quote to its operator, `pointers` the JSON
    pointers of ``errors``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        *,
        retryable: bool = False,
        retry_after_s: float = 0.0,
        request_id: str = "",
        pointers: tuple[str, ...] = (),
    ) -> None:
        where = f" at {', '.join(pointers)}" if pointers else ""
        quoted = f" (request {request_id})" if request_id else ""
        word = code or "without a problem document"
        super().__init__(f"the service answered {status} {word}{where}{quoted}")
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.pointers = pointers
