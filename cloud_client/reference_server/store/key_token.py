"""Key management by an AES key that stays in a PKCS#11 token: a security module, or SoftHSM for tests."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final

from cloud_client.reference_server.errors import OperatorError, ServerError, StoreUnavailable
from link1.errors import FormatError
from link1.token_key import TokenKey

_NONCE_BYTES: Final = 12
_TAG_BITS: Final = 128
_KEY_BITS: Final = 256


class KeyToken:
    """Key management by AES-256-GCM inside the token that a `pkcs11:` URI names (token, object, PIN file)."""

    def __init__(self, uri: str) -> None:
        try:
            self._held = TokenKey.parse(uri)
        except FormatError as error:
            raise OperatorError(f"the URI of the key-management key: {error}") from None
        if self._held.label is None:
            raise OperatorError("the URI of the key-management key names it by object=…")
        self._login: _Login | None = None

    def wrap(self, secret: bytes, context: bytes) -> bytes:
        """As ``KeyManagement``. StoreUnavailable when the token cannot be reached."""
        import pkcs11

        nonce = os.urandom(_NONCE_BYTES)
        parameters = pkcs11.GCMParams(nonce, context, _TAG_BITS)
        return nonce + self._with_key(
            lambda key: key.encrypt(secret, mechanism=pkcs11.Mechanism.AES_GCM, mechanism_param=parameters)
        )

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """As ``KeyManagement``. StoreUnavailable when the token cannot be reached."""
        import pkcs11

        parameters = pkcs11.GCMParams(wrapped[:_NONCE_BYTES], context, _TAG_BITS)
        return self._with_key(
            lambda key: key.decrypt(
                wrapped[_NONCE_BYTES:], mechanism=pkcs11.Mechanism.AES_GCM, mechanism_param=parameters
            )
        )

    def exists(self) -> bool:
        """Whether the token has the key."""
        return self._logged_in().has(self._held)

    def generate(self) -> None:
        """Make the key in the token, where it is not there yet: it cannot be read or exported."""
        self._logged_in().generate(self._held)

    def destroy(self) -> None:
        """Destroy the key in the token; nothing happens when it is not there."""
        self._logged_in().destroy(self._held)

    def _with_key(self, work: Callable[[Any], bytes]) -> bytes:
        return self._logged_in().use(self._held, work)

    def _logged_in(self) -> "_Login":
        if self._login is None:
            held = self._held
            try:
                pin = held.pin()
            except (OSError, UnicodeDecodeError) as error:
                raise StoreUnavailable(
                    f"the PIN of the key-management token cannot be read: {error}"
                ) from error
            self._login = _login(str(held.module), held.token, held.serial, pin)
        return self._login


@cache
def _login(module: str, token: str | None, serial: str | None, pin: str | None) -> "_Login":
    # A process logs in to a token once: closing a session logs out all of them.
    return _Login(module, token, serial, pin)


class _Login:
    """A session of this process with a token; one operation at a time."""

    def __init__(self, module: str, token: str | None, serial: str | None, pin: str | None) -> None:
        try:
            import pkcs11
            from pkcs11.exceptions import PKCS11Error
        except ImportError:
            raise OperatorError(
                "the key-management key is in a PKCS#11 token, and python-pkcs11 is not installed here "
                "(the extra pkcs11)"
            ) from None
        self._pkcs11, self._errors = pkcs11, (PKCS11Error, RuntimeError)
        self._module, self._token, self._serial, self._pin = module, token, serial, pin
        self._lock = threading.Lock()
        self._session = self._open()
        self._keys: dict[TokenKey, Any] = {}

    def use(self, held: TokenKey, work: Callable[[Any], bytes]) -> bytes:
        """Do the work with the key; once more on another session, for the first may have been lost."""
        with self._lock:
            try:
                return bytes(work(self._key(held)))
            except self._errors:
                self._reopen()
            try:
                key = self._key(held)
            except self._errors as error:
                raise StoreUnavailable(f"key-management token: {type(error).__name__}") from error
            try:
                return bytes(work(key))
            except self._errors as error:
                raise ServerError(
                    "a stored ciphertext does not open in the key-management token: "
                    f"wrong key or damaged database ({type(error).__name__})"
                ) from error

    def has(self, held: TokenKey) -> bool:
        with self._lock:
            return self._found(held) is not None

    def generate(self, held: TokenKey) -> None:
        with self._lock:
            if self._found(held) is None:
                attribute = self._pkcs11.Attribute
                try:
                    self._session.generate_key(
                        self._pkcs11.KeyType.AES,
                        _KEY_BITS,
                        id=held.id,
                        label=held.label,
                        store=True,
                        template={attribute.SENSITIVE: True, attribute.EXTRACTABLE: False},
                    )
                except self._errors as error:
                    raise OperatorError(f"the token makes no AES-256 key: {type(error).__name__}") from error

    def destroy(self, held: TokenKey) -> None:
        with self._lock:
            found = self._found(held)
            if found is not None:
                found.destroy()
                self._keys.clear()

    def _key(self, held: TokenKey) -> Any:
        if held not in self._keys:
            self._keys[held] = self._session.get_key(
                self._pkcs11.ObjectClass.SECRET_KEY, label=held.label, id=held.id
            )
        return self._keys[held]

    def _found(self, held: TokenKey) -> Any:
        try:
            return self._session.get_key(self._pkcs11.ObjectClass.SECRET_KEY, label=held.label, id=held.id)
        except self._pkcs11.exceptions.NoSuchKey:
            return None
        except self._errors as error:
            raise StoreUnavailable(f"key-management token: {type(error).__name__}") from error

    def _reopen(self) -> None:
        self._keys.clear()
        with suppress(*self._errors):
            self._session.close()
        self._session = self._open()

    def _open(self) -> Any:
        try:
            library = self._pkcs11.lib(self._module)
            serial = None if self._serial is None else self._serial.encode("utf-8")
            token = library.get_token(token_label=self._token, token_serial=serial)
            return token.open(rw=True, user_pin=self._pin)
        except self._errors as error:
            raise StoreUnavailable(
                f"the key-management token cannot be reached: {type(error).__name__} {error}".rstrip()
            ) from error
