"""The templates of this package."""

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
    return environment.get_template(name)
