"""The service's own signing keys: one for each use, rotated with an overlap.

``gallery``, ``device_status``, ``erasure_receipt`` and ``webhook`` are published at ``GET /v1/keys``; the
last signs nothing before there are webhooks. ``post`` and ``bundle`` sign mail and what devices are
configured by; devices trust them through a certificate of the root. ``seal`` is the X25519 key that outbox
mail is sealed to.
"""

from collections.abc import Mapping
from typing import Final

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.times import rfc3339, rfc3339_or_none
from cloud_client.reference_server.contract.words import MAX_SERVICE_KEYS
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault
from link1.canonical import JsonObject, b64_encode
from link1.keys import PublicKey, SealKey, SigningKey
from link1.sealed import SignerCertificate, SignerPurpose
from link1.signed import Kind, sign_object

PUBLISHED: Final = ("gallery", "device_status", "erasure_receipt", "webhook")
CERTIFIED: Final[Mapping[str, SignerPurpose]] = {"post": SignerPurpose.POST, "bundle": SignerPurpose.BUNDLE}
SEAL: Final = "seal"
USES: Final = (*PUBLISHED, *CERTIFIED, SEAL)

CERTIFICATE_MS: Final = 2 * 365 * 24 * 3600 * 1000
RENEWED_EVERY_MS: Final = CERTIFICATE_MS // 2
OVERLAP_MS: Final = 90 * 24 * 3600 * 1000
"""How long a key that was followed by another stays published, for what it has signed."""
RECEIPT_KEYS: Final = 16
"""Keys of receipts that stay published after their end: a yearly rotation's for as many years."""


def ensure(tx: Tx, vault: Vault, now_ms: int) -> None:
    """Make the first key of every use that has none."""
    for use in USES:
        if not tx.exists("SELECT 1 FROM signers WHERE use_word = :use", use=use):
            _insert(tx, vault, use, now_ms, now_ms)


def rotate(tx: Tx, vault: Vault, use: str, not_before_ms: int, now_ms: int) -> Row:
    """A new key for a use, signing from ``not_before_ms`` on; the present one stays for the overlap.

    OperatorError before the turn of a key that was made earlier and has not begun (that one would sign after
    its own end), and where devices would be given a longer list of keys than they take.
    """
    if use in PUBLISHED and len(published(tx, now_ms)) >= MAX_SERVICE_KEYS:
        raise OperatorError(
            f"{MAX_SERVICE_KEYS} keys are published, and devices take no list of more: "
            "wait until one of them ends (`not_after` at GET /v1/keys)"
        )
    waiting_ms = tx.scalar(
        "SELECT max(not_before_ms) FROM signers WHERE use_word = :use AND not_before_ms > :now_ms",
        use=use,
        now_ms=now_ms,
    )
    if waiting_ms is not None and not_before_ms <= waiting_ms:
        raise OperatorError(
            f"a new key for {use} was published already and takes over at {rfc3339(waiting_ms)}: "
            "wait for it, or give an --in-s that ends later"
        )
    tx.run(
        """UPDATE signers SET not_after_ms = :not_after_ms
           WHERE use_word = :use AND not_after_ms IS NULL""",
        use=use,
        not_after_ms=not_before_ms + OVERLAP_MS,
    )
    kid = _insert(tx, vault, use, not_before_ms, now_ms)
    return tx.row("SELECT kid, not_before_ms FROM signers WHERE kid = :kid", kid=kid)


def sign(tx: Tx, vault: Vault, use: str, kind: Kind, obj: JsonObject, *, now_ms: int) -> JsonObject:
    """The signed wrapper of ``obj``, by the key that is in force for ``use``."""
    return sign_object(kind, obj, signing_key(tx, vault, use, now_ms))


def signing_key(tx: Tx, vault: Vault, use: str, now_ms: int) -> SigningKey:
    """The key in force: the newest whose time has begun."""
    kid, seed = _seed(tx, use, now_ms)
    return vault.signing_key(kid, seed)


def kid_in_force(tx: Tx, use: str, now_ms: int) -> str:
    return _seed(tx, use, now_ms)[0]


def seal_key(tx: Tx, vault: Vault, now_ms: int) -> SealKey:
    """The key that outbox mail is sealed to."""
    kid, seed_ct = _seed(tx, SEAL, now_ms)
    return SealKey.from_seed(vault.kms.unwrap(seed_ct, kid.encode()))


def seal_keys(tx: Tx, vault: Vault) -> list[SealKey]:
    """Every key that outbox mail may still be sealed to, the youngest first."""
    rows = tx.all(
        "SELECT kid, seed_ct FROM signers WHERE use_word = :use ORDER BY not_before_ms DESC, kid", use=SEAL
    )
    return [SealKey.from_seed(vault.kms.unwrap(row["seed_ct"], row["kid"].encode())) for row in rows]


def certificate(tx: Tx, vault: Vault, use: str, now_ms: int) -> SignerCertificate:
    """The root's certificate for the key in force of a certified use."""
    kid, _ = _seed(tx, use, now_ms)
    row = tx.row("SELECT pub, not_before_ms FROM signers WHERE kid = :kid", kid=kid)
    # The root is at hand: a signer in force gets a new certificate long before its certificate expires.
    renewals = max(0, now_ms - row["not_before_ms"]) // RENEWED_EVERY_MS
    not_after_ms = row["not_before_ms"] + CERTIFICATE_MS + renewals * RENEWED_EVERY_MS
    return SignerCertificate.issue(CERTIFIED[use], PublicKey(row["pub"]), not_after_ms, vault.root)


def published(tx: Tx, now_ms: int) -> list[shown.SigningKeyAnswer]:
    """The items of ``GET /v1/keys``, newest not_before first; keys that have run out are left off, but for
    the last ones of receipts, which are kept for ever."""
    rows = tx.all(
        """SELECT kid, use_word, pub, not_before_ms, not_after_ms FROM signers
           WHERE not_after_ms IS NULL OR not_after_ms > :now_ms OR kid IN
               (SELECT kid FROM signers WHERE use_word = 'erasure_receipt' AND not_after_ms <= :now_ms
                ORDER BY not_before_ms DESC LIMIT :most)
           ORDER BY not_before_ms DESC, kid""",
        now_ms=now_ms,
        most=RECEIPT_KEYS,
    )
    return [
        shown.SigningKeyAnswer(
            kid=row["kid"],
            alg="ed25519",
            use=[row["use_word"]],
            pub_b64=b64_encode(row["pub"]),
            not_before=rfc3339(row["not_before_ms"]),
            not_after=rfc3339_or_none(row["not_after_ms"]),
        )
        for row in rows
        if row["use_word"] in PUBLISHED
    ]


def _seed(tx: Tx, use: str, now_ms: int) -> tuple[str, bytes]:
    row = tx.one(
        """SELECT kid, seed_ct FROM signers WHERE use_word = :use AND not_before_ms <= :now_ms
           ORDER BY not_before_ms DESC, kid LIMIT 1""",
        use=use,
        now_ms=now_ms,
    )
    if row is None:
        # The clock is before the first key's time: that key is still the only right one.
        row = tx.row(
            "SELECT kid, seed_ct FROM signers WHERE use_word = :use ORDER BY not_before_ms, kid LIMIT 1",
            use=use,
        )
    return row["kid"], row["seed_ct"]


def _insert(tx: Tx, vault: Vault, use: str, not_before_ms: int, now_ms: int) -> str:
    key = SealKey.generate() if use == SEAL else SigningKey.generate()
    tx.run(
        """INSERT INTO signers (kid, use_word, pub, seed_ct, not_before_ms, published_ms)
           VALUES (:kid, :use, :pub, :seed_ct, :not_before_ms, :now_ms)""",
        kid=key.kid,
        use=use,
        pub=key.public.raw,
        seed_ct=vault.kms.wrap(tx, key.seed, key.kid.encode()),
        not_before_ms=not_before_ms,
        now_ms=now_ms,
    )
    return key.kid
