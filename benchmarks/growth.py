"""How the price of privacy changes with batch, width and depth."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["GROWTH", "Growth"]


@dataclass(frozen=True)
class Growth:
    """One thing that grows while the rest stays.

    Args:
        name: what grows.
        network: the network, in words.
        at: its sizes.
        spell: a size to a workload's name.
    """

    name: str
    network: str
    at: tuple[int, ...]
    spell: Callable[[int], str]

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(self.spell(size) for size in self.at)


GROWTH = (
    Growth("batch", "784-1000-10", (75, 150, 300, 600, 1200, 2400), lambda n: f"784-1000-10@{n}"),
    Growth(
        "width",
        "784-width-10, batch 600",
        (125, 250, 500, 1000, 2000, 4000),
        lambda n: f"784-{n}-10@600",
    ),
    Growth(
        "depth", "784-(500)ⁿ-10, batch 600", (1, 2, 4, 8, 16), lambda n: f"784-{'500-' * n}10@600"
    ),
)
