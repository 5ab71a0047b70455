"""``vt dispute`` and ``vt referee``: play a dispute about a run, and rule on a finished one from its transcript."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.cli.frame import command, store_url
from flows.cli.output import EXIT_INCONCLUSIVE, EXIT_REJECTED, EXIT_VERIFIED, out, print_json

TrainerKey = Annotated[str, typer.Option("--trainer-key", help="The trainer's key: private to play it, else public.")]
AuditorKey = Annotated[str, typer.Option("--auditor-key", help="The auditor's key: private to play it, else public.")]
RefereeKey = Annotated[str, typer.Option("--referee-key", help="The referee's key: private to play it, else public.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def dispute(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id.")],
    store: Annotated[
        str | None, typer.Option("--store", envvar="VT_STORE", help="Evidence store: file:///path, a path, or s3://...")
    ] = None,
    params: Annotated[Path, typer.Option("--params", help="Parameter file.")] = Path("params.yaml"),
    role: Annotated[
        str, typer.Option("--as", help="all (play it here from end to end), trainer, auditor, or referee.")
    ] = "all",
    name: Annotated[
        str | None, typer.Option("--dispute", help="Id of the dispute; default: a new one, or the newest to take part.")
    ] = None,
    segment: Annotated[
        int | None, typer.Option("--segment", help="Segment the auditor replays; default: what verdicts name, or all.")
    ] = None,
    trainer_key: TrainerKey = "keys/trainer",
    auditor_key: AuditorKey = "keys/auditor",
    referee_key: RefereeKey = "keys/referee",
    deadline: Annotated[
        float, typer.Option("--deadline", min=0.1, help="Seconds that a party has for each answer (the referee's).")
    ] = 600.0,
    start: Annotated[
        bool, typer.Option("--start", help="With --as referee: start both parties on their Prefect pools.")
    ] = False,
    target: Annotated[Path, typer.Option("--out", help="Folder for the transcript (new or empty).")] = Path(
        "transcript"
    ),
    data: Annotated[str | None, typer.Option("--data", help="Where your own copy of the data lies.")] = None,
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    profile: Annotated[
        str | None, typer.Option("--profile", help="CPU profile: run in a fresh process that rounds differently.")
    ] = None,
    workspace: Annotated[Path, typer.Option("--workspace", help="Folder for intermediate files.")] = Path(".vt"),
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show more.")] = False,
) -> None:
    """Find the one operation in which trainer and auditor differ, and rule on it.

    Both answer signed requests of a referee; every message is an object in the store. Each party runs its own copy of
    the code. Leaves with 0 when the dispute was played to its end, whoever won: the ruling itself is what 'vt referee'
    finds in the transcript, and its exit code.
    """
    with command(as_json, verbose, profile):
        from flows.cli.progress import show_progress
        from tasks.dispute_roles import Terms, play_all, play_one
        from tasks.params import import_from, load_params
        from tasks.runs import RunStore
        from tasks.store import open_store
        from vt_core.dispute.transcript import check_target
        from vt_core.errors import SpecError
        from vt_core.verify.limits import portable_limits

        own = load_params(params) if params.exists() else None
        for folder in (own.folder if own else None, str(Path.cwd())):  # a job that is not installed
            if folder is not None:
                import_from(folder)
        run = RunStore(open_store(store_url(store, params)), run_id)
        check_target(target)
        if start and role != "referee":
            raise SpecError("--start goes with --as referee")
        keys = {"trainer": trainer_key, "auditor": auditor_key, "referee": referee_key}
        location = data if data is not None or own is None else own.location
        limits = portable_limits(own.audit.get("limits")) if own else None
        terms = Terms(run, keys, name, deadline, segment, location, device, workspace, limits)
        with show_progress(quiet=as_json), ExitStack() as stack:
            if role == "all":
                result = play_all(terms, stack)
            elif start:
                from flows.dispute import start_parties

                result = play_one(terms, role, stack, lambda name, public: start_parties(terms, name, public))
            else:
                result = play_one(terms, role, stack)
        written = result.save(target)
        plain = {**result.ruling, "run_id": run_id, "dispute": result.dispute, "transcript": str(target), **written}
        if as_json:
            print_json(plain)
        else:
            _print(plain)
            out.print(f"check it: vt referee {target}", style="dim", markup=False)


def referee(
    transcript: Annotated[Path, typer.Argument(metavar="TRANSCRIPT", help="Folder that vt dispute wrote.")],
    trainer_key: TrainerKey = "keys/trainer.pub",
    auditor_key: AuditorKey = "keys/auditor.pub",
    referee_key: RefereeKey = "keys/referee.pub",
    as_json: JsonOption = False,
) -> None:
    """Check a dispute again from its transcript alone, recompute the disputed operation, and rule.

    Needs neither the store nor the job's code or data. Exit code: 0 for the trainer, 1 for the auditor (the trainer
    cheated), 2 inconclusive, 3 if the transcript is not complete, was changed, or belongs to other keys.
    """
    with command(as_json, False, None):
        from tasks.dispute_roles import examine_folder

        plain = examine_folder(
            transcript, {"trainer": trainer_key, "auditor": auditor_key, "referee": referee_key}
        ).to_json()
        if as_json:
            print_json(plain)
        else:
            _print(plain)
            if not plain["referee_agrees"]:
                out.print("[bold red]the referee signed another ruling than follows from the messages[/]")
        codes = {"trainer": EXIT_VERIFIED, "auditor": EXIT_REJECTED, None: EXIT_INCONCLUSIVE}
        raise SystemExit(codes[plain["winner"]])


def register(app: typer.Typer) -> None:
    """Add the commands of this module to ``app``."""
    app.command(epilog="Example: vt dispute RUN --store file://$PWD/store && vt referee transcript/")(dispute)
    app.command(epilog="Example: vt referee transcript/ --trainer-key keys/trainer.pub --json")(referee)


def _print(plain: dict[str, Any]) -> None:
    winner = plain["winner"]
    colour = {"trainer": "green", "auditor": "red", None: "yellow"}[winner]
    said = f"ruling for the {winner}" if winner else "inconclusive"
    out.print(f"[bold {colour}]{said}[/] ({plain['reason']}): {escape(plain['detail'])}")
    place = ", ".join(f"{name} {value}" for name, value in plain["place"].items())
    if place:
        out.print(f"  where: {place}")
    out.print(
        f"  run {plain['run_id']}, dispute {plain['dispute']}: {plain['rounds']} rounds, messages of "
        f"{plain['message_bytes']} bytes, a witness of {plain['witness_bytes']} bytes"
    )
    if "root" in plain:
        signed = "signed by the trainer's key" if plain["seal_signed"] else "not signed"
        out.print(f"  root {plain['root']}, seal {plain['seal']} ({signed})", style="dim")
