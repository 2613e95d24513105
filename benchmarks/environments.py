"""The other libraries, and an environment for each, built when it is first needed."""

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.children import ROOT, NoResult

__all__ = ["PEERS", "Peer", "installed", "interpreter"]

NETWORKS = ("transformers", "peft")  # what some of the networks are made by
HOME = ROOT / "benchmarks" / ".peers"


@dataclass(frozen=True)
class Peer:
    """A library to compare with.

    Args:
        name: of its environment.
        systems: what it calls its ways of training, as in the module's ``SYSTEMS``.
        requirements: what to install; nothing means that our own environment has it.
        takes_any: whether it takes networks as they are, those of public libraries among them.
    """

    name: str
    systems: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    takes_any: bool = True

    @property
    def module(self) -> str:
        return f"benchmarks.peers.with_{self.name.replace('-', '_')}"


PEERS = (
    Peer("torch-func", ("torch-func",)),
    Peer("opacus", ("opacus-hooks", "opacus-ghost"), ("torch", "opacus==1.6.0", *NETWORKS)),
    Peer(
        "jax-privacy",
        ("jax-privacy",),
        ("torch", "jax==0.10.2", "jax-privacy==2.0.0"),
        takes_any=False,  # layers are written anew in JAX, in `benchmarks.peers.with_jax_privacy`
    ),
)


def interpreter(peer: Peer) -> Path:
    """The Python of a peer's environment, which is built if there is none with these requirements.

    Raises:
        NoResult: if it cannot be built.
    """
    if not peer.requirements:
        return Path(sys.executable)
    folder = HOME / peer.name
    python = folder / "bin" / "python"
    ready = folder / "ready.json"
    wanted = json.dumps(peer.requirements)
    if not (ready.exists() and ready.read_text() == wanted):
        venv.create(folder)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "--disable-pip-version-check",
            "--quiet",
        ]
        command = [*pip, "install", "-c", ROOT / "constraints.txt", *peer.requirements]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise NoResult(f"{peer.name} does not install: {done.stderr.strip().splitlines()[-1]}")
        ready.write_text(wanted)
    return python


def installed(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of these packages in an environment."""
    script = (
        "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in"
        " sys.argv[1:]}))"
    )
    done = subprocess.run(
        [python, "-c", script, *packages], capture_output=True, text=True, check=True
    )
    versions: dict[str, str] = json.loads(done.stdout)
    return versions
