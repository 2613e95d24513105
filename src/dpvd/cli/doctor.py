"""``dpvd doctor``: what this installation is made of, and whether its randomness is sound."""

import hashlib
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version

import numpy as np
import torch
import typer
from rich.table import Table
from rich.text import Text

from dpvd import __version__
from dpvd.cli.console import out, print_json
from dpvd.cli.options import AsJson
from dpvd.mechanisms import SystemBits, standard_normal
from dpvd.native import draw_from_key, implementation_in_use, write_key_stream

__all__ = ["EXAMPLES", "doctor"]

EXAMPLES = (
    "dpvd doctor",
    "dpvd doctor --json",
)

UNSAFE = 1  # exit code
_DRAWS = 100_000
_SIX_SIGMA = 6.0  # standard errors; a healthy source is further off in one of 10^8 runs

# AES-256 of plaintext 0: NIST, "The Advanced Encryption Standard Algorithm Validation Suite"
# (2002), appendix C.
_KEY = bytes.fromhex("c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558")
_STREAM = "46f2fb342d6f0ab477476fc501242c5f"
_SEEDED_NOISE = "1fa286235e3d250ca06f8694b4059c45010918c665ad73568b550fa4ac5b2e6a"


def doctor(as_json: AsJson = False) -> None:
    """Show versions, threads and what draws the noise; test the key stream and the noise.

    Ends with exit code 1 if a test fails: nothing that this installation trains is private then.
    """
    facts = _facts()
    failures = _failures()
    if as_json:
        print_json(facts | {"safe": not failures, "failures": failures})
    else:
        out.print(_table(facts, failures), soft_wrap=False)
    if failures:
        raise typer.Exit(UNSAFE)


def _failures() -> dict[str, str]:
    """What is wrong, by the name of the test that found it."""
    found = {}
    for name, test in _TESTS.items():
        problem = test()
        if problem:
            found[name] = problem
    return found


def _table(facts: Mapping[str, str | int], failures: Mapping[str, str]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in facts.items():
        if value != "":
            table.add_row(name.replace("_", " "), Text(str(value)))
    for name in _TESTS:
        verdict = Text("passed", "green")
        if name in failures:
            verdict = Text(f"FAILED: {failures[name]}", "bold red")
        table.add_row(name, verdict)
    return table


def _facts() -> dict[str, str | int]:
    used = implementation_in_use()
    return {
        "dpvd": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "cryptography": version("cryptography"),
        "dp_accounting": version("dp-accounting"),
        "threads": torch.get_num_threads(),
        "noise_source": SystemBits.description,
        "noise_made_by": "compiled kernels" if used.compiled else "NumPy",
        "transform": used.transform,
        "cipher": used.cipher,
        "hint": used.hint,
    }


def _test_key_stream() -> str:
    """The published value, and what is wrong with ours if it is another."""
    stream = np.zeros(16, dtype=np.uint8)
    write_key_stream(_KEY, 0, stream)
    return "" if stream.tobytes().hex() == _STREAM else "AES-256 does not give its published value"


def _test_seeded_noise() -> str:
    noise = np.zeros(5000, dtype=np.float32)
    draw_from_key(noise, 1.0, _KEY)
    digest = hashlib.sha256(noise.astype("<f4").tobytes()).hexdigest()
    return (
        "" if digest == _SEEDED_NOISE else "a fixed key does not give the noise it gives elsewhere"
    )


def _test_private_noise() -> str:
    """Mean, variance and repetition of noise as a run would draw it."""
    try:
        bits = SystemBits()
        first = standard_normal(_DRAWS, bits).double()
        second = standard_normal(_DRAWS, bits).double()
    except RuntimeError as error:
        return str(error)
    unit = _DRAWS**-0.5  # standard error of a mean
    deviations = {
        "mean": first.mean().item() / unit,
        "variance": (first.square().mean().item() - 1) / (2**0.5 * unit),
        "correlation of two draws": (first * second).mean().item() / unit,
    }
    wrong = {name: value for name, value in deviations.items() if abs(value) > _SIX_SIGMA}
    return "; ".join(f"{name} is {value:.1f} standard errors off" for name, value in wrong.items())


_TESTS: dict[str, Callable[[], str]] = {
    "key stream": _test_key_stream,
    "seeded noise": _test_seeded_noise,
    "private noise": _test_private_noise,
}
