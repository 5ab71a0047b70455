"""``vt calibrate``: how far honest machines differ in a job, what tolerance covers that, and what each one costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from flows.cli.frame import command
from flows.cli.output import EXIT_INCONCLUSIVE, EXIT_VERIFIED, out, print_json

_STATES = {"sufficient": "green", "thin": "yellow", "insufficient": "bold red", "unused": "dim"}


def calibrate(
    params: Annotated[Path, typer.Option("--params", help="Parameter file.")] = Path("params.yaml"),
    steps: Annotated[int, typer.Option(help="Training steps to run.")] = 3,
    against: Annotated[
        list[str] | None,
        typer.Option(help="A CPU profile, or a device (cuda), to compare with profile default; repeatable."),
    ] = None,
    permutations: Annotated[int, typer.Option(help="Run each reduction in so many other orders too; 0: in none.")] = 2,
    safety: Annotated[int, typer.Option(help="Propose so many times what was observed: a power of two.")] = 8,
    samples: Annotated[int, typer.Option(help="Elements compared at each rounding site.")] = 4096,
    write: Annotated[bool, typer.Option("--write", help="Put the proposed policy into the parameter file.")] = False,
    data: Annotated[str | None, typer.Option("--data", help="Where your copy of the data lies.")] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu or cuda for the recording; default: what the parameters say.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show how each comparison came out.")] = False,
) -> None:
    """Measure how far honest machines differ in this job, and propose the tolerance policy that covers it.

    Runs the first steps under several CPU profiles (other code paths of the same libraries) and with reductions in
    another order, and shows the largest divergence of each op class, the policy that covers it with a safety factor,
    and the log that each choice costs. Exit code 0; 2 if the job's own policy does not cover what was observed: audits
    could end as tolerance_exceeded.
    """
    with command(as_json, verbose, None):
        from flows.cli.progress import show_progress
        from tasks.calibrating import calibrate as run
        from tasks.policy_file import policy_yaml, write_policy
        from vt_core.verify.calibration import Calibration

        plan = Calibration(steps, samples, permutations)
        with show_progress(quiet=as_json):
            result = run(params, against or (), plan, safety, device, data)
        plain = result.to_json() | {"written": None}
        if write:
            write_policy(params, result.policy())  # raises where nothing covers what was observed
            plain["written"] = str(params)
        if as_json:
            print_json(plain)
        else:
            print_calibration(plain, verbose)
            if plain["policy"] is not None and not write:
                out.print(f"to use it, put this under 'train:' (or --write):\n  policy: {policy_yaml(result.policy())}")
        raise SystemExit(EXIT_VERIFIED if result.sufficient or write else EXIT_INCONCLUSIVE)


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(epilog="Example: vt calibrate --params params.yaml --against portable --against mkl-avx --write")(
        calibrate
    )


def print_calibration(plain: dict[str, Any], verbose: bool) -> None:
    """Print a calibration for a person; with ``verbose`` every comparison and the places that diverge most."""
    out.print(
        f"[bold]{plain['reference']}[/], {plain['compute_dtype']} onto {plain['grid']}, "
        f"steps 1 to {plain['steps']}, safety factor {plain['safety']}"
    )
    out.print(_divergences(plain))
    out.print(_costs(plain))
    if verbose:
        out.print(_sides(plain))
        out.print(_worst(plain))
    for side in plain["sides"]:
        if side["parted"] is not None:
            where = f"step {side['parted']['step']}, {_place(side['parted'])}"
            out.print(f"[bold red]{side['name']}[/] has other bits where no tolerance applies: {where}")
    for name, found in plain["classes"].items():
        if found["state"] == "insufficient":
            out.print(
                f"[bold red]insufficient[/]: {name} diverges by {_number(found['headroom'])} tolerances "
                f"at {_place(found)}"
            )
    if plain["problem"]:
        out.print(Text(plain["problem"], "bold red"))
    if plain["wider_than_default"]:
        out.print(
            f"wider than the default for {', '.join(plain['wider_than_default'])}: auditors accept it only with "
            "audit.limits.policy"
        )
    if plain["written"]:
        out.print(f"[green]written[/] to {plain['written']}")


def _divergences(plain: dict[str, Any]) -> Table:
    table = Table("op class", "largest", "headroom", "99.99 %", "proposed", "", box=SIMPLE, title="divergence")
    for name, c in plain["classes"].items():
        state = Text(c["state"], _STATES[c["state"]])
        seen = (_power(c["largest"]), _number(c["headroom"]), _number(c["headroom_quantile"]))
        table.add_row(name, *(seen if c["state"] != "unused" else ("",) * 3), _exponents(c["proposed"]), state)
    table.caption = "largest: |dx| over the tensor's scale; headroom: largest |dx| over the tolerance"
    return table


def _costs(plain: dict[str, Any]) -> Table:
    table = Table(
        "op class", "tolerance", "logged", "bytes a step", "covers", "", box=SIMPLE, title="log size (least possible)"
    )
    for name, c in plain["classes"].items():
        for choice in c["choices"] if c["state"] != "unused" else ():
            exponents = {key: choice[key] for key in ("rtol_exp", "atol_exp", "step_exp") if key in choice}
            marks = [word for word in ("current", "proposed") if c[word] == exponents]
            covers = "with safety" if choice["safe"] else "yes" if choice["covers"] else "no"
            table.add_row(
                name, _exponents(exponents), f"{choice['share_logged']:.1e}", f"{choice['bytes_per_step']:,.0f}",
                covers, " ".join(marks),
            )  # fmt: skip
    size = plain["bytes_per_step"]
    table.caption = f"all classes: {size['current']:,.0f} bytes a step now, {size['proposed']:,.0f} as proposed"
    return table


def _sides(plain: dict[str, Any]) -> Table:
    table = Table("default against", "compared", "headroom", "where", box=SIMPLE)
    for side in plain["sides"]:
        table.add_row(side["name"], f"{side['compared']:,}", _number(side["headroom"]), Text(_place(side)))
    return table


def _worst(plain: dict[str, Any]) -> Table:
    table = Table("op class", "op", "module", "largest", "headroom", box=SIMPLE)
    for place in plain["worst"]:
        row = (place["op_class"], Text(place["op"]), Text(place["module"]))
        table.add_row(*row, _power(place["largest"]), _number(place["headroom"]))
    return table


def _place(found: dict[str, Any]) -> str:
    return f"{found['op']} in {found['module']}" if found["module"] else str(found["op"])


def _exponents(tolerance: dict[str, int | None] | None) -> str:
    if tolerance is None:
        return "none covers it"
    absolute = f"2^{tolerance['atol_exp']}"
    return absolute if tolerance["rtol_exp"] is None else f"{absolute} + 2^{tolerance['rtol_exp']} |x|"


def _power(value: float) -> str:
    if not 0.0 < value < math.inf:
        return "0" if value == 0.0 else "infinite"
    return f"2^{math.log2(value):.1f}"


def _number(value: float) -> str:
    return "0" if value == 0.0 else f"{value:.3g}"
