"""The templates of this package."""

import re

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

__all__ = ["template"]


def template(name: str) -> Template:
    """Return a template; every text that it is given is escaped, a name that is missing raises."""
    environment = Environment(
        loader=PackageLoader("dpvd.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["whole"] = _whole
    return environment.get_template(name)


# "ε = 0.9996", "δ = 1e-05": browsers would break at the spaces and after the hyphen.
_NUMBER = re.compile(r"(?:e\^)?[εδμ] = [\d.]+(?:e-?\d+)?|[\d.]+e-\d+")
_UNBROKEN = str.maketrans({" ": "\N{NO-BREAK SPACE}", "-": "\N{NON-BREAKING HYPHEN}"})


def _whole(text: object) -> str:
    """Return text whose numbers stay on one line."""
    return _NUMBER.sub(lambda found: found[0].translate(_UNBROKEN), str(text))
