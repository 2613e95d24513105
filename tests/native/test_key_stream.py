"""The key stream: published values, OpenSSL's stream byte for byte, and not a byte too many."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpvd.errors import DpvdError
from dpvd.native import write_key_stream

# NIST, "The Advanced Encryption Standard Algorithm Validation Suite" (2002), AES-256 of plaintext
# 0, which is the first counter block: two values of appendix C (KeySbox), two of appendix E
# (VarKey).
PUBLISHED = {
    "c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558": (
        "46f2fb342d6f0ab477476fc501242c5f"
    ),
    "28d46cffa158533194214a91e712fc2b45b518076675affd910edeca5f41ac64": (
        "4bf3b0a69aeb6657794f2901b1440ad4"
    ),
    "80" + 31 * "00": "e35a6dcb19b201a01ebcfa8aa22b5759",
    32 * "ff": "4bf85f1b5d54adbc307b0a048389adcb",
}
GUARD = 64


def openssl_stream(key: bytes, start: int, size: int) -> bytes:
    counter, skipped = divmod(start, 16)
    stream = Cipher(algorithms.AES256(key), modes.CTR(counter.to_bytes(16, "big"))).encryptor()
    return stream.update(bytes(skipped + size))[skipped:]


def stream(key: bytes, start: int, size: int) -> bytes:
    """The key stream, written between guards that must stay as they are."""
    memory = np.full(size + 2 * GUARD, 0xA5, dtype=np.uint8)
    write_key_stream(key, start, memory[GUARD : GUARD + size])
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[GUARD + size :] == 0xA5).all()
    return memory[GUARD : GUARD + size].tobytes()


@pytest.mark.parametrize("key", PUBLISHED)
def test_published_values_are_met(implementation: str, key: str) -> None:
    assert stream(bytes.fromhex(key), 0, 16).hex() == PUBLISHED[key]


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    key=st.binary(min_size=32, max_size=32), start=st.integers(0, 2**63), size=st.integers(0, 1000)
)
def test_is_the_stream_of_openssl_from_any_byte_on(
    implementation: str, key: bytes, start: int, size: int
) -> None:
    assert stream(key, start, size) == openssl_stream(key, start, size)


@pytest.mark.parametrize(
    "size", [0, 1, 15, 16, 17, 127, 128, 129, 255, 256, 257, 271, 272, 12_288, 600_001]
)
def test_every_size_and_offset_is_right(implementation: str, size: int) -> None:
    key = bytes(range(32))
    for start in (0, 1, 15, 16, 2**36 - 8):  # the last: counters that pass 2^32
        assert stream(key, start, size) == openssl_stream(key, start, size)


def test_the_last_byte_is_the_end(implementation: str) -> None:
    key = bytes(range(32))
    assert stream(key, 2**64 - 40, 40) == openssl_stream(key, 2**64 - 40, 40)
    with pytest.raises(DpvdError, match=r"bytes 0 to 2\^64 - 1"):
        stream(key, 2**64 - 40, 41)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_other_keys_are_refused(implementation: str, size: int) -> None:
    with pytest.raises(DpvdError, match=f"has 32 bytes, got {size}"):
        stream(bytes(size), 0, 16)
