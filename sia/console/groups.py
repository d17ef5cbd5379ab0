"""Command groups whose help shows whole sentences, and suggestions for mistyped commands."""

from __future__ import annotations

import click

from sia.console.catalogue import CATALOGUE
from sia.contract.plugins import load_plugin, plugins
from sia.wording import did_you_mean

OTHER = "Other"
"""Heading of commands that another package installs: the catalogue does not know them."""


class Group(click.Group):
    """A group whose help shows the whole first sentence of each command."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with. Raises UsageError with the nearest name."""
        name, known = args[0], self.list_commands(ctx)
        if not ctx.resilient_parsing and not name.startswith("-") and name not in known:
            ctx.fail(f"No such command {name!r}.{did_you_mean(name, known)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section for each group of commands."""
        sections = self.sections(ctx)
        widest = max((len(name) for rows in sections.values() for name in rows), default=0)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), text) for name, text in rows.items()])

    def sections(self, ctx: click.Context) -> dict[str, dict[str, str]]:
        """Return the sentence of each command by name, under the title of its section."""
        rows = {
            name: sentence(command)
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        }
        return {"Commands": rows} if rows else {}


class CommandTree(Group):
    """The `sia` command: finds commands by entry point and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all installed commands."""
        return list(plugins("sia.commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in plugins("sia.commands"):
            return None
        command: click.Command = load_plugin("sia.commands", cmd_name)
        return command

    def sections(self, ctx: click.Context) -> dict[str, dict[str, str]]:
        """Return the catalogue, and all other installed commands as a section of their own."""
        installed = self.list_commands(ctx)
        found = {
            title: {name: text for name, text in rows.items() if name in installed}
            for title, rows in CATALOGUE.items()
        }
        known = {name for rows in found.values() for name in rows}
        found[OTHER] = self._others(ctx, [name for name in installed if name not in known])
        return {title: rows for title, rows in found.items() if rows}

    def _others(self, ctx: click.Context, names: list[str]) -> dict[str, str]:
        commands = ((name, self.get_command(ctx, name)) for name in names)
        return {name: sentence(command) for name, command in commands if command is not None}


def sentence(command: click.Command) -> str:
    """Return the first paragraph of a command's help, in one line."""
    return " ".join((command.help or "").split("\n\n")[0].split())
