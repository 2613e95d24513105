"""Commands whose modules are imported when they are asked for."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dpvd.cli.flags import FlagCommand

__all__ = ["epilog", "lazy_group"]


class LazyCommand(TyperCommand):
    """Stands for a command: knows name and help, becomes the real one to parse arguments."""

    def __init__(self, package: str, name: str, summary: str) -> None:
        super().__init__(name, help=summary)
        self._package = package

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: Any = None,
        **extra: Any,
    ) -> Any:
        """Import the command and let it parse its arguments: from here on it does all itself."""
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        """Return the real command, the function ``name`` of the module ``package.name``.

        Its help ends with the module's ``EXAMPLES``.
        """
        assert self.name is not None
        module = import_module(f"{self._package}.{self.name}")
        home = typer.Typer(add_completion=False)
        register = home.command(self.name, cls=FlagCommand, epilog=epilog(module.EXAMPLES))
        register(getattr(module, self.name))
        return typer.main.get_command(home)


def lazy_group(package: str, summaries: Mapping[str, str]) -> type[TyperGroup]:
    """Return a class of command groups with these commands, none of which has been imported.

    Args:
        package: where each command has a module of its name, with a function of its name and
            ``EXAMPLES`` of its use.
        summaries: the first line of each command's help, by name.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            commands = {
                name: LazyCommand(package, name, summary) for name, summary in summaries.items()
            }
            super().__init__(**settings | {"commands": commands})

    return LazyGroup


def epilog(examples: Sequence[str]) -> str:
    """Command lines as the last paragraphs of a help text; typer keeps no single line break."""
    lines = [f"$ {line}" for line in examples]
    return "\n\n".join(["Examples:", *lines])
