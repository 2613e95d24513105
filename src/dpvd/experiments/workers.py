"""Running many specs, one after another or in processes of their own."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from dpvd.data import Dataset, load
from dpvd.experiments.execute import run_spec
from dpvd.experiments.noise_levels import EXAMPLES
from dpvd.experiments.spec import Spec
from dpvd.experiments.store import ResultStore

__all__ = ["Job", "cost", "run_all"]

FEATURES = {"digits": 64, "mnist": 784}
AS_MANY_EXAMPLES = 600  # cost as much as the noise and the prior of a step
LOOK_EVERY = 1.0  # seconds between two looks of a worker at whether it is still wanted

Job = tuple[Spec, ResultStore]
"""What to run, and where its record goes."""


def run_all(jobs: Sequence[Job], processes: int, data_dir: Path | None) -> Iterator[Spec]:
    """Run specs and write their records; yields each spec when its record is on disk.

    Guarantees:
        Stopping at any moment, by whatever means, loses at most the specs that are running. Workers
        end with the process that started them.

    Args:
        jobs: what to run, in the order in which they begin.
        processes: 1 runs them in this process, with all its threads; more start workers with one
            thread each.
        data_dir: where MNIST is looked for first.
    """
    if processes == 1:
        for spec, store in jobs:
            yield _run(spec, store.folder, data_dir)
        return
    context = get_context("spawn")
    stop = context.Event()
    with ProcessPoolExecutor(processes, context, _begin_worker, (os.getpid(), stop)) as pool:
        try:
            for done in as_completed(
                [pool.submit(_run, spec, store.folder, data_dir) for spec, store in jobs]
            ):
                yield done.result()
        except BaseException:
            stop.set()  # the pool would wait for what is running
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def cost(spec: Spec) -> float:
    """About how long a spec takes beside others: weights of its network times examples it sees.

    >>> from dpvd.experiments.catalogue import make_spec
    >>> from dpvd.experiments.protocols import DIGITS_100, MNIST_10
    >>> short = make_spec(DIGITS_100, "DPVD-AC", "as-printed", 1.0, 0)
    >>> long = make_spec(MNIST_10, "DPVD-AC", "as-printed", 1.0, 0)
    >>> cost(short) < cost(long)
    True
    """
    examples = EXAMPLES[spec.dataset]
    seen = examples * (50.0 if spec.epochs is None else spec.epochs)
    steps = seen / (spec.batch_size or examples)
    weights = spec.hidden * FEATURES[spec.dataset]
    return weights * (seen + AS_MANY_EXAMPLES * steps)


def _run(spec: Spec, folder: Path, data_dir: Path | None) -> Spec:
    ResultStore(folder).write(run_spec(spec, _load(spec.dataset, data_dir)))
    return spec


@lru_cache(maxsize=2)
def _load(name: str, data_dir: Path | None) -> Dataset:
    return load(name, data_dir)


def _begin_worker(parent: int, stop: Any) -> None:
    torch.set_num_threads(1)
    watch = threading.Thread(target=_end_when_unwanted, args=(parent, stop), daemon=True)
    watch.start()


def _end_when_unwanted(parent: int, stop: Any, end: Callable[[int], None] = os._exit) -> None:
    """End this process when it is told to stop, or whoever started it is gone."""
    while not stop.wait(LOOK_EVERY):
        if os.getppid() != parent:
            break
    end(1)
