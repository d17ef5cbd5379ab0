"""`sia strl`."""

from __future__ import annotations

from pathlib import Path

import click

from replay.cli.options import solve_options
from replay.logs.read import reading
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.contract.solvers import chosen, solve
from sia.policies.jvu.strl.answer import PlacedLeaf, answer_of, describe
from sia.policies.jvu.strl.compiler import CompiledStrl
from sia.policies.jvu.strl.expressions import Choose
from sia.policies.jvu.strl.text import MAX_TEXT, parse_strl
from sia.state.strl import StrlError
from sia.wording import counted


@click.group(cls=Group)
def strl() -> None:
    """Solve requests for nodes and times that are written in STRL."""


@strl.command("solve")
@click.argument("file", type=Path)
@solve_options
@json_option()
def solve_file(file: Path, solver: str | None, limit: float, as_json: bool) -> None:
    """Choose those of the requests in FILE that together are worth most."""
    chosen(solver)
    with reading(file), file.open("rb") as opened:
        raw = opened.read(4 * MAX_TEXT + 4)
    try:
        problem = parse_strl(raw.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"{file}: the text is not UTF-8; save it as UTF-8") from None
    except StrlError as error:
        raise UserError(f"{file}: {error}") from None
    compiled = CompiledStrl(problem)
    solved = solve(compiled.program, seconds=limit, heuristics=True, solver=solver)
    if solved.values is None:
        raise UserError(f"{file}: no answer within {limit:g} s; give the solver more --seconds")
    answer = answer_of(compiled, solved.values)
    if as_json:
        print_json(
            {
                "objective": answer.objective,
                "optimal": solved.status == "optimal",
                "chosen": [describe(each) for each in answer.chosen],
            }
        )
        return
    click.echo(f"objective: {answer.objective:g}")
    if solved.status != "optimal":
        click.echo("note: the limit on time was reached; more --seconds may find more")
    if not answer.chosen:
        click.echo("nothing is chosen")
    for each in answer.chosen:
        click.echo(_line(each))


def _line(placed: PlacedLeaf) -> str:
    """Describe a chosen leaf in one line."""
    leaf = placed.leaf
    where = ", ".join(
        f"{units} of {node}" if units > 1 else node for node, units in placed.units.items()
    )
    who = f"{placed.job}: " if placed.job else ""
    if isinstance(leaf, Choose):
        span = f"from {leaf.start:g} to {leaf.start + leaf.duration:g}"
        return f"{who}{counted(placed.total, 'unit')} {span}: {where}"
    return f"{who}kill {counted(placed.total, 'unit')} at {leaf.begin:g}: {where}"
