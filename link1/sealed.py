"""Sealed records (the mail between service and device) and the certificates of its signers.

A record is `{post, ct_b64, alg, signer_kid, sig_b64, signer_cert_b64?}`. Its ciphertext is
`enc (32 bytes) ‖ HPKE ciphertext`: RFC 9180 base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256,
ChaCha20Poly1305, single shot with empty aad, and
`info = "svc.post.v1" ‖ 0x00 ‖ JCS(post without ct_len and ct_sha256)`, so a ciphertext opens only
under the addressing it was sealed with. The signature covers `svc.post.record.v1 ‖ 0x00 ‖ JCS(post)`,
and post pins length and hash of the ciphertext.

A certificate is 104 bytes: signer key (32) ‖ not_after in epoch milliseconds (u64, big-endian) ‖
signature of the root (64) over `purpose prefix ‖ 0x00 ‖ signer key ‖ not_after`.
"""

import hashlib
import struct
from collections.abc import Container
from dataclasses import dataclass
from enum import StrEnum

from pyhpke import AEADId, CipherSuite, KDFId, KEMId, PyHPKEError

from link1 import members
from link1.bodies import Box
from link1.canonical import (
    CARRYING_DEPTH,
    JsonObject,
    b64_decode,
    b64_encode,
    canonical_bytes,
    read_strict,
)
from link1.errors import FormatError, SealError, SignatureError
from link1.keys import KEY_BYTES, SIGNATURE_BYTES, PublicKey, SealKey, SealPublicKey, SigningKey
from link1.members import HEX32, HEX64, NAME
from link1.signed import Kind, signer_kid_of, verify_object

SUITE = "hpke-x25519-sha256-chacha20poly1305"
SERVICE_ID = "svc"
CERTIFICATE_BYTES = KEY_BYTES + 8 + SIGNATURE_BYTES

INBOX_CT_MAX_BYTES = 512 * 1024
"""A page of 150 gallery entries (about 430 KiB) fits; a validator can still hold one on a stick."""
OUTBOX_CT_MAX_BYTES = 64 * 1024
"""A verdict batch of some thirty items; what a back office posts stays under its 4 MiB a request."""

_CT_MAX_BYTES = {Box.IN: INBOX_CT_MAX_BYTES, Box.OUT: OUTBOX_CT_MAX_BYTES}
_INFO_PREFIX = b"svc.post.v1\x00"
_ENC_BYTES = 32
_TAG_BYTES = 16
_PLAINTEXT_TYPE = NAME


class SignerPurpose(StrEnum):
    """What a root certifies a signer for."""

    BUNDLE = "svc.bundle.signer.v1"
    POST = "svc.post.signer.v1"


@dataclass(frozen=True, slots=True)
class SignerCertificate:
    """A signer that a root vouches for until `not_after_ms` (epoch milliseconds)."""

    signer: PublicKey
    not_after_ms: int
    root_sig: bytes

    @classmethod
    def issue(
        cls, purpose: SignerPurpose, signer: PublicKey, not_after_ms: int, root: SigningKey
    ) -> "SignerCertificate":
        body = signer.raw + struct.pack(">Q", not_after_ms)
        return cls(signer, not_after_ms, root.sign(purpose.encode("ascii") + b"\x00" + body))

    @classmethod
    def from_b64(cls, text: object) -> "SignerCertificate":
        """Parse 140 characters of base64; raises FormatError. Says nothing about who signed it yet."""
        raw = b64_decode(text, length=CERTIFICATE_BYTES)
        (not_after_ms,) = struct.unpack(">Q", raw[KEY_BYTES : KEY_BYTES + 8])
        return cls(PublicKey.from_bytes(raw[:KEY_BYTES]), not_after_ms, raw[KEY_BYTES + 8 :])

    @property
    def b64(self) -> str:
        return b64_encode(self.signer.raw + struct.pack(">Q", self.not_after_ms) + self.root_sig)

    def check(
        self, purpose: SignerPurpose, roots: list[PublicKey], now_ms: int, revoked: Container[str] = ()
    ) -> PublicKey:
        """Return the signer when one of `roots` certified it for `purpose`, it has not run out, and its kid
        is not among the `revoked`.

        Raises SignatureError.
        """
        if self.signer.kid in revoked:
            raise SignatureError("the key of the signer is revoked")
        if now_ms > self.not_after_ms:
            raise SignatureError("the certificate of the signer has run out")
        message = purpose.encode("ascii") + b"\x00" + self.signer.raw + struct.pack(">Q", self.not_after_ms)
        for root in roots:
            try:
                root.verify(message, self.root_sig)
            except SignatureError:
                continue
            return self.signer
        raise SignatureError("the certificate of the signer is by no pinned root")


@dataclass(frozen=True, slots=True)
class Post:
    """The signed envelope of a record."""

    rid: str
    box: Box
    src: str
    dst: str
    seq: int
    created_ms: int
    ct_len: int
    ct_sha256: str

    @classmethod
    def from_obj(cls, obj: JsonObject) -> "Post":
        """Parse; raises FormatError, or SealError `unsupported_suite`."""
        members.version_1(obj)
        box = Box(members.one_of(obj, "box", frozenset(Box)))
        if members.member(obj, "suite") != SUITE:
            raise SealError("unsupported_suite", f"suite is not {SUITE}")
        return cls(
            rid=members.text(obj, "rid", HEX32),
            box=box,
            src=members.text(obj, "src", NAME),
            dst=members.text(obj, "dst", NAME),
            seq=members.integer(obj, "seq", 1),
            created_ms=members.integer(obj, "created_ms"),
            ct_len=members.integer(obj, "ct_len", _ENC_BYTES + _TAG_BYTES, _CT_MAX_BYTES[box]),
            ct_sha256=members.text(obj, "ct_sha256", HEX64),
        )


def seal_record(
    *,
    box: Box,
    src: str,
    dst: str,
    seq: int,
    rid: str,
    created_ms: int,
    type_: str,
    body: JsonObject,
    to: SealPublicKey,
    signer: SigningKey,
    certificate: SignerCertificate | None = None,
) -> JsonObject:
    """Seal `{v:1, type, body}` to `to` and sign the record. Raises FormatError when it is too large."""
    addressing: JsonObject = {
        "v": 1,
        "rid": rid,
        "box": str(box),
        "src": src,
        "dst": dst,
        "seq": seq,
        "created_ms": created_ms,
        "suite": SUITE,
    }
    suite = _suite()
    plaintext = canonical_bytes({"v": 1, "type": type_, "body": body})
    enc, context = suite.create_sender_context(suite.kem.deserialize_public_key(to.raw), _info(addressing))
    ciphertext = enc + context.seal(plaintext)
    if len(ciphertext) > _CT_MAX_BYTES[box]:
        raise FormatError(
            f"a record of the {box} box holds at most {_CT_MAX_BYTES[box]} bytes, not {len(ciphertext)}"
        )
    post = addressing | {"ct_len": len(ciphertext), "ct_sha256": hashlib.sha256(ciphertext).hexdigest()}
    record: JsonObject = {
        "post": post,
        "ct_b64": b64_encode(ciphertext),
        "alg": "ed25519",
        "signer_kid": signer.kid,
        "sig_b64": b64_encode(signer.sign(Kind.POST.signed_bytes(post))),
    }
    if certificate is not None:
        record["signer_cert_b64"] = certificate.b64
    return record


def check_inbox_record(
    record: JsonObject,
    *,
    device_id: str,
    roots: list[PublicKey],
    now_ms: int,
    next_seq: int,
    revoked: Container[str] = (),
) -> tuple[Post, bytes]:
    """Check a record from the service, in the order the contract gives, up to its seq.

    `revoked`: kids whose keys sign nothing any more. Returns its post and ciphertext; raises SealError with
    the code to report.
    """
    post, ciphertext = read_record(record, Box.IN)
    try:
        certificate = SignerCertificate.from_b64(record.get("signer_cert_b64"))
    except FormatError as error:
        raise SealError("malformed", f"signer_cert_b64: {error}") from None
    try:
        signer = certificate.check(SignerPurpose.POST, roots, now_ms, revoked)
    except SignatureError as error:
        raise SealError("unknown_signer", str(error)) from None
    check_signature(record, signer)
    check_post(post, ciphertext, Box.IN, src=SERVICE_ID, dst=device_id)
    if post.seq != next_seq:
        raise SealError("seq_conflict", f"seq {next_seq} is next")
    return post, ciphertext


def open_record(record: JsonObject, ciphertext: bytes, key: SealKey) -> tuple[str, JsonObject]:
    """Decrypt a checked record; returns its type and body. Raises SealError `malformed`."""
    post = record["post"]
    addressing = {name: post[name] for name in post if name not in {"ct_len", "ct_sha256"}}
    suite = _suite()
    try:
        context = suite.create_recipient_context(
            ciphertext[:_ENC_BYTES], suite.kem.deserialize_private_key(key.seed), _info(addressing)
        )
        plaintext = context.open(ciphertext[_ENC_BYTES:])
    except (PyHPKEError, ValueError):  # a low-order key raises a bare ValueError
        raise SealError("malformed", "the record does not open under this key") from None
    try:
        message = read_strict(plaintext, max_bytes=INBOX_CT_MAX_BYTES, max_depth=CARRYING_DEPTH)
        members.version_1(message)
        return members.text(message, "type", _PLAINTEXT_TYPE), members.nested(message, "body")
    except FormatError as error:
        raise SealError("malformed", f"inside the record: {error}") from None


def _suite() -> CipherSuite:
    return CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.CHACHA20_POLY1305)


def _info(addressing: JsonObject) -> bytes:
    return _INFO_PREFIX + canonical_bytes(addressing)


_RECORD_MEMBERS = frozenset({"post", "ct_b64", "alg", "signer_kid", "sig_b64"})


def read_record(record: JsonObject, box: Box) -> tuple[Post, bytes]:
    """The post and the ciphertext of a record, unchecked but for their shape. Raises SealError."""
    if set(record) - {"signer_cert_b64"} != _RECORD_MEMBERS:
        raise SealError("malformed", "a record has post, ct_b64, alg, signer_kid, sig_b64")
    try:
        signer_kid_of(Kind.POST, _wrapper(record))
        post = Post.from_obj(members.nested(record, "post"))
        return post, b64_decode(record["ct_b64"], max_length=_CT_MAX_BYTES[box])
    except FormatError as error:
        raise SealError("malformed", str(error)) from None


def _wrapper(record: JsonObject) -> JsonObject:
    return {name: record[name] for name in ("post", "alg", "signer_kid", "sig_b64")}


def check_signature(record: JsonObject, signer: PublicKey) -> None:
    """Raises SealError unless `signer` signed the record."""
    if record["signer_kid"] != signer.kid:
        raise SealError("unknown_signer", "signer_kid is not the key that may sign here")
    try:
        verify_object(Kind.POST, _wrapper(record), signer)
    except FormatError as error:
        raise SealError("malformed", str(error)) from None
    except SignatureError as error:
        raise SealError("bad_signature", str(error)) from None


def check_post(post: Post, ciphertext: bytes, box: Box, *, src: str, dst: str) -> None:
    """Check who it is from and for, and what it says of its ciphertext. Raises SealError."""
    if post.box is not box:
        raise SealError("wrong_box", f"box {box} expected")
    if post.src != src:
        raise SealError("wrong_source", "src is not who may write here")
    if post.dst != dst:
        raise SealError("wrong_destination", "dst is another recipient")
    if len(ciphertext) != post.ct_len:
        raise SealError("length_mismatch", "ct_len is not the length of the ciphertext")
    if hashlib.sha256(ciphertext).hexdigest() != post.ct_sha256:
        raise SealError("hash_mismatch", "ct_sha256 is not the hash of the ciphertext")
