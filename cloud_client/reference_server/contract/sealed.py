"""A device's sealed record as the service checks it (device surface §5)."""

from link1.bodies import Box
from link1.canonical import JsonObject
from link1.keys import PublicKey
from link1.sealed import SERVICE_ID, Post, check_post, check_signature, read_record


def check_outbox_record(record: JsonObject, *, device_id: str, signer: PublicKey) -> tuple[Post, bytes]:
    """Check a record from a device, in the order the contract gives, but for its seq.

    Returns its post and ciphertext; raises SealError with the code to report.
    """
    post, ciphertext = read_record(record, Box.OUT)
    check_signature(record, signer)
    check_post(post, ciphertext, Box.OUT, src=device_id, dst=SERVICE_ID)
    return post, ciphertext
