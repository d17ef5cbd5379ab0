"""The `sia` command: packages add their commands through entry points `sia.commands`."""

from __future__ import annotations

import gc

GARBAGE = 200_000
"""Allocations between two garbage collections. The objects of a replay live to its end and form no
cycles: with Python's default of 700, collections took a tenth of its time."""

gc.set_threshold(GARBAGE)  # before the imports, which allocate too

# ruff: noqa: E402
import os
import signal
import sys

import click

from sia import __version__
from sia.console.groups import CommandTree
from sia.console.neighbours import clash
from sia.console.terminal import printable
from sia.contract.plugins import PluginError

MISUSE = 2
"""Exit code for misuse: a wrong option, argument or input."""

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM; shells use 128 + SIGINT."""

NUMBERS = {
    "a valid integer range": "a valid whole number",
    "a valid float range": "a valid number",
}
"""Phrases in Click's messages about options with bounds, and what the command prints instead."""


@click.command(cls=CommandTree, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sia")
def cli() -> None:
    """Share idle GPUs between pools without delaying the jobs of the pools that lend them."""


def main() -> None:
    """Run the command line; misuse ends with one line on stderr and exit code 2."""
    if (message := clash()) is not None:
        click.echo(f"sia: {message}", err=True)
        sys.exit(MISUSE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    try:
        code = cli.main(prog_name="sia", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(MISUSE)
    except PluginError as error:
        click.echo(f"sia: {printable(str(error))}", err=True)
        sys.exit(MISUSE)
    except click.ClickException as error:
        where = (
            error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "sia"
        )
        message = " ".join(error.format_message().split())
        for of_click, plain in NUMBERS.items():
            message = message.replace(of_click, plain)
        hint = f" (see {where} --help)" if isinstance(error, click.UsageError) else ""
        click.echo(f"sia: {printable(message)}{hint}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("sia: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        click.echo(
            f"sia: cannot write the output: {error.strerror}; fix this and run it again", err=True
        )
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
