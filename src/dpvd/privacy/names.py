"""The two choices every guarantee names: between which data sets, and by which accountant."""

from enum import StrEnum

from dpvd.errors import choice

__all__ = ["AccountantName", "Relation"]


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
        return cls.RDP if name == "moments" else choice(name, cls, "accountant")
