"""Protocols: the sizes and lengths at which the paper's experiments are run."""

from dataclasses import dataclass, replace

__all__ = [
    "DIGITS_100",
    "DIGITS_QUICK",
    "MNIST_10",
    "MNIST_200",
    "MNIST_QUICK",
    "PROTOCOLS",
    "ExperimentProtocol",
]


@dataclass(frozen=True)
class ExperimentProtocol:
    """One data set at one length.

    Args:
        name: what tables and records call it.
        dataset: ``digits`` or ``mnist``.
        epochs, batch_size, hidden: E, S and hidden units.
        learning_rate: η₀ as printed.
        seeds: runs for each cell of Table 1 and Fig. 1, 2, 4.
        close_seeds: the same for cells of the paper's closest comparisons; 0: as the others.
        sweep_seeds: runs for each point of Fig. 5; 0 leaves it out.
        rates, gammas: the grid from which the search for η₀ and γ starts.
        search_on: whether the search goes on until all neighbours of its best point were tried.
        tuned_at: name of a shorter protocol whose search decides here too; empty: it has its own.
        hidden_sweep, epochs_sweep, clip_sweep, batch_sweep: the values of Fig. 5, the protocol's
            own among them.
        as_in_paper: whether sizes and lengths are the paper's.
    """

    name: str
    dataset: str
    epochs: int
    batch_size: int
    hidden: int
    learning_rate: float
    seeds: int
    sweep_seeds: int
    rates: tuple[float, ...]
    gammas: tuple[float, ...]
    hidden_sweep: tuple[int, ...] = ()
    epochs_sweep: tuple[int, ...] = ()
    clip_sweep: tuple[float, ...] = ()
    batch_sweep: tuple[int, ...] = ()
    as_in_paper: bool = False
    close_seeds: int = 0
    search_on: bool = False
    tuned_at: str = ""

    @property
    def words(self) -> str:
        """The protocol in one line, for captions.

        >>> DIGITS_100.words
        'digits-100: 1000 hidden units, batches of 100, 100 epochs'
        """
        return (
            f"{self.name}: {self.hidden} hidden units, batches of {self.batch_size}, "
            f"{self.epochs} epoch{'s' * (self.epochs != 1)}"
        )


DIGITS_100 = ExperimentProtocol(
    "digits-100",
    "digits",
    epochs=100,
    batch_size=100,
    hidden=1000,
    learning_rate=0.05,
    seeds=10,
    sweep_seeds=0,
    rates=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    gammas=(0.0, 0.5, 1.0),
    as_in_paper=True,
    close_seeds=30,
    search_on=True,
)
MNIST_200 = ExperimentProtocol(
    "mnist-200",
    "mnist",
    epochs=200,
    batch_size=600,
    hidden=1000,
    learning_rate=0.1,
    seeds=3,
    sweep_seeds=3,
    rates=(),
    gammas=(),
    hidden_sweep=(50, 100, 200, 500, 1000, 2000),
    epochs_sweep=(50, 100, 200, 400),
    clip_sweep=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    batch_sweep=(100, 200, 400, 600, 1000, 2000),
    as_in_paper=True,
    tuned_at="mnist-10",
)
MNIST_10 = replace(
    MNIST_200,
    name="mnist-10",
    epochs=10,
    rates=(0.03, 0.1, 0.3, 1.0),
    gammas=(0.0, 0.5),
    epochs_sweep=(2, 5, 10, 20),
    as_in_paper=False,
    search_on=True,
    tuned_at="",
)
DIGITS_QUICK = ExperimentProtocol(
    "digits-quick",
    "digits",
    epochs=20,
    batch_size=100,
    hidden=200,
    learning_rate=0.05,
    seeds=2,
    sweep_seeds=0,
    rates=(0.01, 0.1, 1.0),
    gammas=(0.0,),
)
MNIST_QUICK = ExperimentProtocol(
    "mnist-quick",
    "mnist",
    epochs=1,
    batch_size=600,
    hidden=100,
    learning_rate=0.1,
    seeds=1,
    sweep_seeds=1,
    rates=(0.1, 1.0),
    gammas=(0.0,),
    hidden_sweep=(50, 100, 200),
    epochs_sweep=(1, 2),
    clip_sweep=(1.0, 2.0, 4.0, 6.0),
    batch_sweep=(300, 600, 1200),
)

PROTOCOLS = {p.name: p for p in (DIGITS_100, MNIST_200, MNIST_10, DIGITS_QUICK, MNIST_QUICK)}
"""All protocols, by name."""
