"""Ed25519 signatures over a run's manifest, and so over all files that it names."""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from dpvd.errors import DpvdError
from dpvd.files import HANDED_OUT, create_private, write_atomically
from dpvd.runs.run_dir import MANIFEST, SIGNATURE

__all__ = ["check_signature", "create_key", "sign_run"]

_LARGEST = 1 << 16  # bytes of a key or a signature


def create_key(path: Path | str) -> Path:
    """Make a key pair: the private key in a new file that only its owner can read.

    Returns:
        The file of the public key, ``path`` with ``.pub`` added: to give to whoever verifies.

    Raises:
        DpvdError: if a file exists already or cannot be written.
    """
    private_path = Path(path)
    public_path = private_path.with_name(f"{private_path.name}.pub")
    private = Ed25519PrivateKey.generate()
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    if public_path.exists():
        raise DpvdError(f"{public_path} exists already: choose another name for the key")
    try:
        create_private(private_path, secret)
    except OSError as error:
        raise DpvdError(f"cannot write the key {private_path}: {error.strerror}") from None
    write_atomically(public_path, public, mode=HANDED_OUT)
    return public_path


def sign_run(folder: Path | str, key: Path | str) -> Path:
    """Sign the manifest of a run, which must hold.

    Args:
        folder: of a finished run.
        key: file of the private key, PEM, without a password.

    Returns:
        The file of the signature.

    Raises:
        DpvdError: if the manifest or the key cannot be read.
    """
    place = Path(folder)
    private = _private_key(Path(key))
    signature = private.sign(_read(place / MANIFEST))
    path = place / SIGNATURE
    write_atomically(path, f"{signature.hex()}\n".encode())
    return path


def check_signature(folder: Path, key: Path) -> str:
    """Say that the run's manifest was signed with the private key of this public one.

    Raises:
        DpvdError: if it was not, or something cannot be read.
    """
    public = _public_key(key)
    path = folder / SIGNATURE
    written = _read(path)
    manifest = _read(folder / MANIFEST)
    try:
        signature = bytes.fromhex(written.decode("ascii").strip())
        public.verify(signature, manifest)
    except ValueError:  # no hexadecimal numbers, or no letters at all
        raise DpvdError(f"{path} holds no signature") from None
    except InvalidSignature:
        raise DpvdError(f"{path} is not a signature of this run's manifest by this key") from None
    return f"by the key {key.name}"


def _private_key(path: Path) -> Ed25519PrivateKey:
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise DpvdError(
            f"{path} is not an Ed25519 private key in PEM without a password: make one with"
            " dpvd sign --new-key"
        )
    return key


def _public_key(path: Path) -> Ed25519PublicKey:
    content = _read(path)
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise DpvdError(f"{path} is not an Ed25519 public key in PEM")
    return key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise DpvdError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _LARGEST:
        raise DpvdError(f"{path} is too long to be what it should be")
    return content
