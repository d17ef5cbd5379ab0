"""The `sia` command: each room adds its own commands through entry points `sia.commands`."""

from __future__ import annotations

import gc

GARBAGE = 200_000
"""Allocations between two searches for garbage. What a replay allocates lives to its end and forms
no cycles: at Python's 700 a tenth of its time went into looking at it again and again."""

gc.set_threshold(GARBAGE)  # before the imports, which allocate too

# ruff: noqa: E402
import os
import signal
import sys

import click

from sia import __version__
from sia.console.terminal import printable
from sia.plugins import plugins

MISUSE = 2
"""Exit code for what the user asked or gave that cannot be."""

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM, as shells have it for the first."""


class _Commands(click.Group):
    """Commands found by entry point, imported only when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(plugins("sia.commands"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        point = plugins("sia.commands").get(cmd_name)
        if point is None:
            return None
        command: click.Command = point.load()
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sia")
def cli() -> None:
    """Share idle GPUs between pools and hold back what their owners will need."""


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # tidy up as after Ctrl-C
    try:
        code = cli.main(prog_name="sia", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(MISUSE)
    except click.ClickException as error:
        where = (
            error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "sia"
        )
        message = " ".join(error.format_message().split())
        hint = f" (see {where} --help)" if isinstance(error, click.UsageError) else ""
        click.echo(f"sia: {printable(message)}{hint}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("sia: interrupted; no partial results were left", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        click.echo(f"sia: cannot write the output ({error.strerror}); mend it and repeat", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
