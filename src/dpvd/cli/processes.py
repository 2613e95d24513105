"""Commands that several processes run together: how they are started, and which of them speaks."""

import hashlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import typer
from torch import distributed
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dpvd.cli.console import fail, out, say
from dpvd.errors import DpvdError
from dpvd.ranks import ALONE, Ranks, StoppedByAnother, backend_for, processes_around

__all__ = ["go_on_alone", "launch", "name_of_launch", "rank_of_launcher", "restarts", "together"]

_SAID = "dpvd/said"
_PATIENCE = timedelta(seconds=5)  # with a process that is about to print its message


def rank_of_launcher() -> int:
    """The number that a launcher gave to this process; 0 without one."""
    return int(os.environ.get("RANK", "0"))


def restarts() -> int:
    """How often the launcher has started this program again, after one of its processes died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def name_of_launch() -> str | None:
    """What is the same in all starts by one launcher, and in no other; None without a launcher.

    A run whose folder nobody named is found by it: a second start that took a new folder would
    spend the budget again.

    Raises:
        DpvdError: if an earlier start may have begun a folder, and nothing tells which.
    """
    identity = os.environ.get("TORCHELASTIC_RUN_ID", "none")  # the default of --rdzv-id
    if identity != "none":
        return hashlib.sha256(identity.encode()).hexdigest()[:16]  # it may hold any character
    # Machines that come and go restart the program without being counted.
    if restarts() or os.environ.get("GROUP_WORLD_SIZE", "1") != "1":
        raise DpvdError(
            "the launcher may have started this run before, and nothing tells in which folder:"
            " name it by --out, or give torchrun an --rdzv-id of its own"
        )
    return None


def go_on_alone() -> None:
    """Forget the launcher: the other processes have nothing to do, and end."""
    os.environ.pop("RANK", None)


def launch(processes: int) -> None:
    """Run this very command line again, in several processes that torchrun starts.

    The cores are divided among them, unless OMP_NUM_THREADS says how many threads each has.

    Raises:
        typer.Exit: with the code of the process that failed first; it has said why.
        DpvdError: if a process was killed.
    """
    from torch.distributed.elastic.multiprocessing import api as processes_of_torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    torchrun: Any = import_module("torch.distributed.run")  # which has no types
    threads = max(1, (os.cpu_count() or 1) // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # The agent would report each end of a process; that process' own message is enough.
    logging.getLogger(processes_of_torch.__name__).setLevel(logging.CRITICAL)
    launcher = ["--standalone", f"--nproc-per-node={processes}", "-m", "dpvd"]
    try:
        torchrun.run(torchrun.parse_args([*launcher, *sys.argv[1:]]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            raise DpvdError(
                f"process {rank} of {processes} was ended by signal {-failure.exitcode}, and the"
                " others with it: go on with --resume; what was charged stays charged"
            ) from None
        raise typer.Exit(failure.exitcode) from None


@contextmanager
def together() -> Iterator[Ranks]:
    """The processes of the launcher as one group; of what they say, each thing is said once.

    The first process prints results and progress. An error is printed by the process that has
    one of its own, the first to come if there are several; the others wait for that: a launcher
    ends all processes as soon as one has ended.
    """
    if processes_around() == 1:
        yield ALONE
        return
    kept, rank, size = next(rendezvous("env://"))
    # The launcher's store outlives a restart, with the addresses of processes that are gone.
    store = PrefixStore(f"start-{restarts()}", kept)
    backend = backend_for(torch.get_default_device())  # where a command makes its network
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    say.quiet = out.quiet = rank > 0
    try:
        yield Ranks(distributed.group.WORLD)
    except DpvdError as problem:
        _say_once(problem, store)
        if "--debug" in sys.argv:
            raise
        raise typer.Exit(2) from problem
    distributed.destroy_process_group()


def _say_once(problem: DpvdError, store: Any) -> None:
    """Print an error, unless another process does; return when it is printed.

    Args:
        store: a ``Store`` of torch, which it does not export by name.
    """
    with suppress(RuntimeError):  # the store is gone with the process that kept it
        if isinstance(problem, StoppedByAnother) or store.add(f"{_SAID}/count", 1) > 1:
            store.wait([_SAID], _PATIENCE)
            return
    say.quiet = False
    fail(str(problem))
    with suppress(RuntimeError):
        store.set(_SAID, "yes")
