"""The choices every guarantee names: neighbouring data sets, sampling, accountant."""

from enum import StrEnum

from dpvd.errors import choice

__all__ = ["AccountantName", "Relation", "SamplingKind"]


class Relation(StrEnum):
    """Which pairs of data sets count as neighbours."""

    ADD_OR_REMOVE = "add-or-remove"
    """One data set has one example more than the other. Flat clipping at C: sensitivity C."""

    REPLACE_ONE = "replace-one"
    """Same number of examples, one of them different. Flat clipping at C: sensitivity 2C."""

    @classmethod
    def parse(cls, name: str) -> "Relation":
        """Return the relation of this name.

        Raises:
            DpvdError: if there is none.

        >>> Relation.parse("replace-one")
        <Relation.REPLACE_ONE: 'replace-one'>
        """
        return choice(name, cls, "relation")


class SamplingKind(StrEnum):
    """How the batch of a step is drawn."""

    POISSON = "poisson"
    """Every example takes part with the same probability, independently of the others."""

    FIXED_SIZE = "fixed-size"
    """A uniformly random subset of the batch size, without replacement."""


class AccountantName(StrEnum):
    """How the privacy loss of many steps is added up."""

    PLD = "pld"
    """Privacy loss distributions, composed numerically. The tightest; the default."""

    RDP = "rdp"
    """Renyi differential privacy, the moments accountant of Abadi et al. (2016)."""

    ZCDP = "zcdp"
    """Truncated concentrated differential privacy."""

    ADVANCED = "advanced"
    """Advanced composition, Theorem 3.20 of Dwork and Roth (2014)."""

    @classmethod
    def parse(cls, name: str) -> "AccountantName":
        """Return the accountant of this name; ``moments`` is another word for ``rdp``.

        Raises:
            DpvdError: if there is none.

        >>> AccountantName.parse("moments")
        <AccountantName.RDP: 'rdp'>
        """
        if name == "moments":
            return cls.RDP
        return choice(name, cls, "accountant")
