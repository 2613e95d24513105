"""Random bits: secrecy of the key, no repetition, failing closed, exact resumption."""

import contextlib
import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpvd.errors import DpvdError
from dpvd.mechanisms import BitSource, SeededBits, SystemBits
from dpvd.mechanisms.bits import random_words
from tests.mechanisms.statistics import ALARM


def drawn(bits: BitSource, size: int) -> bytes:
    buffer = np.zeros(size, dtype=np.uint8)
    bits.fill(buffer)
    return buffer.tobytes()


def no_entropy(size: int) -> bytes:
    raise OSError("no entropy")


@pytest.fixture(params=["system", "seeded"])
def bits(request: pytest.FixtureRequest) -> BitSource:
    return SystemBits() if request.param == "system" else SeededBits(7, "test")


class TestEverySource:
    def test_bytes_are_uniform(self, bits: BitSource) -> None:
        counts = np.bincount(np.frombuffer(drawn(bits, 1 << 20), np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > ALARM

    def test_no_block_ever_repeats(self, bits: BitSource) -> None:
        stream = b"".join(drawn(bits, 160_000) for _ in range(3))
        blocks = [stream[i : i + 16] for i in range(0, len(stream), 16)]
        assert len(set(blocks)) == len(blocks)

    def test_every_byte_of_a_large_buffer_is_filled(self, bits: BitSource) -> None:
        size = 600_001
        untouched = np.ones(size, dtype=bool)
        for _ in range(6):  # a byte that is filled stays 0 six times with probability 2^-48
            untouched &= np.frombuffer(drawn(bits, size), np.uint8) == 0
        assert not untouched.any()

    def test_empty_and_shaped_buffers_are_legal(self, bits: BitSource) -> None:
        assert drawn(bits, 0) == b""
        square = np.zeros((64, 64), dtype=np.uint8)
        bits.fill(square)
        assert (square != 0).sum() > 3000

    @pytest.mark.parametrize(
        "buffer",
        [np.zeros(8, np.float32), np.zeros(8, np.uint8)[::2], np.frombuffer(bytes(8), np.uint8)],
        ids=["another type", "not contiguous", "read-only"],
    )
    def test_unsuitable_buffers_are_refused(self, bits: BitSource, buffer: np.ndarray) -> None:
        with pytest.raises(DpvdError, match="contiguous array of uint8"):
            bits.fill(buffer)

    def test_words_are_whole_64_bit_words(self, bits: BitSource) -> None:
        words = random_words(4096, bits)
        assert words.shape == (4096,)
        ones = np.array(
            [((words >> np.uint64(bit)) & np.uint64(1)).sum() for bit in range(64)]
        ).astype(float)
        assert 2 * stats.norm.sf(np.abs(ones - 2048).max() / 32) * 64 > ALARM


class TestSystemBits:
    def test_says_that_it_is_private(self) -> None:
        assert SystemBits().private is True
        assert SystemBits().description == "the system's cryptographic generator"

    def test_two_sources_share_no_stream(self) -> None:
        assert drawn(SystemBits(), 32) != drawn(SystemBits(), 32)

    def test_key_comes_from_the_operating_system_and_is_replaced(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []
        urandom = os.urandom
        monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or urandom(size))
        bits = SystemBits(rekey_after=64)
        stream = drawn(bits, 64) + drawn(bits, 576)
        assert asked == [32] * 10
        drawn(bits, 1)
        assert asked == [32] * 11
        blocks = [stream[i : i + 16] for i in range(0, 640, 16)]
        assert len(set(blocks)) == 40

    def test_without_entropy_there_is_no_source(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "urandom", no_entropy)
        with pytest.raises(RuntimeError, match="gave no randomness"):
            SystemBits()

    def test_without_entropy_for_the_next_key_the_fill_fails(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bits = SystemBits(rekey_after=64)
        monkeypatch.setattr(os, "urandom", no_entropy)
        drawn(bits, 64)
        with pytest.raises(RuntimeError, match="gave no randomness"):
            drawn(bits, 1)

    def test_threads_never_get_the_same_bits(self) -> None:
        bits = SystemBits(rekey_after=1 << 18)
        filled: list[bytes] = []

        def work() -> None:
            for _ in range(20):
                with contextlib.suppress(
                    RuntimeError
                ):  # what the thread gets that interrupts another
                    filled.append(drawn(bits, 1 << 19))

        threads = [Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        words = np.concatenate([np.frombuffer(part, np.uint64)[::2] for part in filled])
        assert len(np.unique(words)) == len(words)  # by chance with probability below 1e-7

    @pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_a_source_cannot_be_copied(self, attempt: Callable[[SystemBits], object]) -> None:
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            attempt(SystemBits())

    def test_a_key_is_not_shown(self) -> None:
        (window,) = SystemBits().windows(8)
        assert repr(window) == "Window(start=0, size=8)"

    def test_windows_of_one_key_end_between_units_and_never_overlap(self) -> None:
        bits = SystemBits(rekey_after=100)
        windows = [window for size in (7, 250, 30, 100) for window in bits.windows(size, unit=30)]
        places = [(window.start, window.size) for window in windows]
        assert places == [(0, 7), (7, 90), (0, 90), (0, 70), (70, 30), (0, 100)]
        assert len({window.key for window in windows}) == 4
        with pytest.raises(DpvdError, match="rekey_after must be at least 101"):
            bits.windows(5, unit=101)

    def test_a_thread_that_comes_in_between_is_refused(self) -> None:
        bits = SystemBits()
        with bits._alone(), pytest.raises(RuntimeError, match="serves another thread"):
            drawn(bits, 8)
        assert len(set(drawn(bits, 64))) > 16

    @pytest.mark.parametrize("rekey_after", [0, -1, 1.5])
    def test_bad_rekeying_is_refused(self, rekey_after: int) -> None:
        with pytest.raises(DpvdError, match="rekey_after"):
            SystemBits(rekey_after=rekey_after)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot fork here")
    def test_a_forked_child_has_its_own_stream(self) -> None:
        answer = subprocess.run(
            [sys.executable, "-c", FORKING], capture_output=True, text=True, check=True
        )
        streams = answer.stdout.split()
        assert len(streams) == 4
        assert len(set(streams)) == 4


# A parent and its child, then the same with the process number made to look unchanged, as after its
# reuse.
FORKING = """
import os, sys, warnings
import numpy as np
from dpvd.mechanisms import SystemBits
warnings.simplefilter("ignore", DeprecationWarning)
bits = SystemBits()

def show():
    buffer = np.zeros(32, np.uint8)
    bits.fill(buffer)
    print(buffer.tobytes().hex(), flush=True)

for same_number in (False, True):
    number = os.getpid()
    child = os.fork()
    if child == 0:
        if same_number:
            os.getpid = lambda: number
        show()
        os._exit(0)
    os.waitpid(child, 0)
    show()
"""


class TestSeededBits:
    def test_says_that_it_is_not_private(self) -> None:
        assert SeededBits(0, "noise").private is False
        assert (
            SeededBits(0, "noise").description
            == "reproducible: not private against whoever knows the seed"
        )

    def test_stream_is_the_same_on_every_machine_and_release(self) -> None:
        # The key stream of AES-256-CTR from counter 0 under SHA-256("dpvd seeded bits 1:0:noise"),
        # by printf 'dpvd seeded bits 1:0:noise' | sha256sum and
        # head -c 32 /dev/zero | openssl enc -aes-256-ctr -K <that> -iv 0...0
        assert drawn(SeededBits(0, "noise"), 32).hex() == GOLDEN

    @given(st.integers(0, 600_000), st.integers(0, 100))
    def test_resumes_exactly_from_any_position(self, before: int, after: int) -> None:
        bits = SeededBits(3, "sampling")
        drawn(bits, before)
        position = bits.position
        expected = drawn(bits, after)
        resumed = SeededBits(3, "sampling")
        resumed.position = position
        assert position == before
        assert drawn(resumed, after) == expected
        assert resumed.position == before + after

    def test_pieces_join_to_the_whole(self) -> None:
        bits = SeededBits(1, "noise")
        pieces = b"".join(drawn(bits, size) for size in (1, 0, 15, 17, 300_000))
        assert pieces == drawn(SeededBits(1, "noise"), len(pieces))

    def test_seed_and_purpose_select_the_stream(self) -> None:
        keys = [
            (0, "noise"),
            (1, "noise"),
            (0, "sampling"),
            (10, ""),
            (1, "0"),
            (1, "0:"),
            (2**70, "noise"),
        ]
        assert len({drawn(SeededBits(seed, purpose), 32) for seed, purpose in keys}) == len(keys)

    def test_far_positions_are_reached_at_once(self) -> None:
        bits = SeededBits(0, "noise")
        bits.position = 2**64 - 101
        assert len(set(drawn(bits, 64))) > 16
        with pytest.raises(DpvdError, match="ends after 2\\^64 bytes"):
            drawn(bits, 38)

    @pytest.mark.parametrize("seed", [-1, 0.5, True, "1"])
    def test_bad_seeds_are_refused(self, seed: int) -> None:
        with pytest.raises(DpvdError, match="seed must be a whole number"):
            SeededBits(seed, "noise")

    @pytest.mark.parametrize("position", [-1, 2**64, 1.0, True])
    def test_bad_positions_are_refused(self, position: int) -> None:
        bits = SeededBits(0, "noise")
        with pytest.raises(DpvdError, match="position must be a whole number"):
            bits.position = position


GOLDEN = "4de5a85d98186e6003481f9dfca78bad536a5839b20799f770baac2530b67e53"
