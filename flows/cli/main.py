"""``vt``: train, audit, show, report, doctor, demo. Heavy libraries are imported inside the commands that need them."""

from __future__ import annotations

import traceback
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.cli import calibrate, dispute, evidence, signing
from flows.cli.frame import command, reexecute, store_url
from flows.cli.output import EXIT_ERROR, EXIT_OF, err, print_json, print_summary, print_verdict

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Train models so that an auditor on other hardware can replay any part of the run bit for bit.\n\n"
    "Exit codes: 0 verified (or done), 1 rejected, 2 inconclusive, 3 usage or environment error.",
)

ParamsOption = Annotated[Path, typer.Option("--params", help="Parameter file.", show_default=True)]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", envvar="VT_STORE", help="Evidence store: file:///path, a path, or s3://..."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Show Prefect's own log.")]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="CPU profile: run in a fresh process that rounds differently.")
]
WorkspaceOption = Annotated[Path, typer.Option("--workspace", help="Folder for intermediate files.")]
KeyOption = Annotated[str | None, typer.Option("--key", envvar="VT_KEY", help="File of the private key to sign with.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu or cuda; default: what the parameters say.")]


@app.command(epilog="Example: vt train --params params.yaml --store file://$PWD/store --json")
def train(
    params: ParamsOption = Path("params.yaml"),
    store: StoreOption = None,
    run_id: Annotated[str | None, typer.Option("--run-id", help="Name of the run; resumes a run of that name.")] = None,
    spec: Annotated[
        str | None, typer.Option("--spec", help="An agreed spec (of vt spec): train just that, not the parameters.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="Where your copy of the data lies.")] = None,
    device: DeviceOption = None,
    key: KeyOption = None,
    profile: ProfileOption = None,
    workspace: WorkspaceOption = Path(".vt"),
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Train the run that the parameters describe, and publish its evidence segment by segment.

    A run that was stopped or killed goes on from its last published segment when it is started again with the same
    --run-id, and ends in the same bits. With --spec, what is trained comes from the agreed spec alone; the parameters,
    if there are any, say where data and store lie. The seal is signed with --key (by default keys/trainer, if that key
    has signed the spec).
    """
    with command(as_json, verbose, profile):
        from flows.cli.progress import show_progress
        from tasks.training import open_trainer

        open_trainer(
            params, store, run_id, workspace, spec, data, device, key
        )  # a mistake is told before Prefect starts
        from flows.train import train as flow

        with show_progress(quiet=as_json):
            summary = flow(str(params), store, run_id, str(workspace), spec, data, device, key)
        if as_json:
            print_json(summary)
        else:
            print_summary(summary)


@app.command(epilog="Example: vt audit RUN --store file://$PWD/store --profile portable --segments sample:2")
def audit(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id, as printed by vt train.")],
    store: StoreOption = None,
    params: Annotated[
        Path | None, typer.Option("--params", help="Your parameters: store, data location, audit section.")
    ] = None,
    segments: Annotated[str | None, typer.Option(help="all, sample:N, or numbers as in 0,2,5-7.")] = None,
    data: Annotated[str | None, typer.Option("--data", help="Where your own copy of the data lies.")] = None,
    device: DeviceOption = None,
    profile: ProfileOption = None,
    workspace: WorkspaceOption = Path(".vt"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the fetched evidence in the workspace.")] = False,
    report: Annotated[Path | None, typer.Option("--report", help="Write the verdict as an HTML page too.")] = None,
    nonce: Annotated[
        str | None, typer.Option("--nonce", help="Hex digits the client chose: draw samples and proofs of replay.")
    ] = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Replay a run's segments from the store alone, bit for bit, and give a verdict.

    Needs nothing of the trainer's but the store: the code and the data are your own copies, and their digests must
    be those in the agreed run spec. The verdict is printed, stored with the run, and is the exit code.
    """
    with command(as_json, verbose, profile):
        from tasks.params import Params, import_from, load_params
        from tasks.runs import RunStore
        from tasks.store import open_store
        from vt_core.errors import EvidenceError, SpecError
        from vt_core.verify.limits import portable_limits

        own: Params | None = None
        if params is not None or Path("params.yaml").exists():
            own = load_params(params or Path("params.yaml"))
            import_from(own.folder)
        import_from(str(Path.cwd()))  # the auditor's own copy of a job that is not installed
        section: dict[str, Any] = dict(own.audit) if own else {}
        url = store or (own.store if own else None)
        if url is None:
            raise SpecError("no store: give --store URL, or --params FILE with 'store:' in it")
        wanted_profile = section.get("profile")
        if profile is None and wanted_profile:
            reexecute(str(wanted_profile))

        if report is not None:
            from tasks.reporting import check_target

            check_target(report)
        with suppress(EvidenceError):  # a finding, of which the flow makes a verdict
            RunStore(open_store(url), run_id).commitments()  # a wrong name is told before Prefect starts
        from flows.audit import audit as flow
        from flows.cli.progress import show_progress

        location = data if data is not None else (own.location if own else None)
        limits = portable_limits(section.get("limits"))
        with show_progress(quiet=as_json):
            verdict = flow(
                run_id, url, segments or str(section.get("segments") or "all"), location,
                device or str(section.get("device") or "cpu"), limits, str(workspace), keep,
                report=None if report is None else str(report), nonce=nonce, key=key,
            )  # fmt: skip
        if as_json:
            print_json(verdict)
        else:
            print_verdict(verdict)
        if report is not None and verdict["report"] is None:
            err.print(f"[bold red]error[/]: the report {escape(str(report))} could not be written (--verbose says why)")
        raise SystemExit(EXIT_OF[verdict["verdict"]])


@app.command(epilog="Example: vt show --store file://$PWD/store")
def show(
    run_id: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Run id; without it all runs are listed.")
    ] = None,
    store: StoreOption = None,
    params: ParamsOption = Path("params.yaml"),
    as_json: JsonOption = False,
) -> None:
    """Show the runs in a store, or what one run has published: segments, seal, verdicts."""
    with command(as_json, False, None):
        from flows.cli.show import print_run, print_runs, run_summary, runs_summary
        from tasks.store import open_store

        opened = open_store(store_url(store, params))
        plain = runs_summary(opened) if run_id is None else run_summary(opened, run_id)
        if as_json:
            print_json(plain)
        elif run_id is None:
            print_runs(plain)
        else:
            print_run(plain)


@app.command(epilog="Example: vt runs --store s3://evidence/prod")
def runs(store: StoreOption = None, params: ParamsOption = Path("params.yaml"), as_json: JsonOption = False) -> None:
    """List the runs of a store: job, segments, seal, share that was audited, verdict."""
    with command(as_json, False, None):
        from flows.cli.runs import print_table, table
        from tasks.store import open_store

        plain = table(open_store(store_url(store, params)))
        if as_json:
            print_json(plain)
        else:
            print_table(plain)


@app.command(epilog="Example: vt watch RUN --store s3://evidence/prod --until verdict")
def watch(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id; it need not exist yet.")],
    store: StoreOption = None,
    params: ParamsOption = Path("params.yaml"),
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2)] = 2.0,
    until: Annotated[str, typer.Option(help="Leave at: sealed, verdict, or never.")] = "verdict",
    as_json: JsonOption = False,
) -> None:
    """Follow a run live: segments as they are published, the seal, the audits. Leaves with the verdict's exit code."""
    with command(as_json, False, None):
        from flows.cli.runs import follow
        from tasks.store import open_store

        raise SystemExit(follow(open_store(store_url(store, params)), run_id, interval, until, as_json))


@app.command(epilog="Example: vt report RUN --store file://$PWD/store --out report.html")
def report(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id.")],
    target: Annotated[Path, typer.Option("--out", help="The HTML file to write.")],
    store: StoreOption = None,
    params: ParamsOption = Path("params.yaml"),
    verdict: Annotated[str | None, typer.Option("--verdict", help="Name of a verdict; default: the last one.")] = None,
    workspace: WorkspaceOption = Path(".vt"),
    as_json: JsonOption = False,
) -> None:
    """Write a stored verdict as one HTML page that opens from disk, from the store alone. Nothing is replayed."""
    with command(as_json, False, None):
        from flows.cli.report import make_report, print_report
        from tasks.store import open_store

        plain = make_report(open_store(store_url(store, params)), run_id, verdict, target, workspace)
        if as_json:
            print_json(plain)
        else:
            print_report(plain)


@app.command(epilog="Example: vt gc --store s3://evidence/prod --workspace .vt")
def gc(
    store: StoreOption = None,
    params: ParamsOption = Path("params.yaml"),
    workspace: WorkspaceOption = Path(".vt"),
    abandoned: Annotated[
        list[str] | None, typer.Option("--abandoned", help="An unsealed run that nobody will go on with; repeatable.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete what is shown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what could be deleted: old workspaces, leftovers of killed audits, artifacts that are no evidence.

    Nothing is deleted without --yes, and never an artifact that a commitment of any run names.
    """
    with command(as_json, False, None):
        from flows.cli.gc import collect, print_garbage
        from tasks.store import open_store

        plain = collect(open_store(store_url(store, params)), workspace, abandoned or [], yes)
        if as_json:
            print_json(plain)
        else:
            print_garbage(plain)


@app.command(epilog="Example: vt doctor --store file://$PWD/store")
def doctor(
    store: StoreOption = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that this machine can train and audit: exact operations, kernels, DVC, store, profiles."""
    with command(as_json, False, None):
        from flows.cli.doctor import examine, print_checks

        checks = examine(store, device or "cpu")
        if as_json:
            print_json({"checks": checks, "ok": all(c["ok"] for c in checks)})
        else:
            print_checks(checks)
        raise SystemExit(0 if all(c["ok"] for c in checks) else EXIT_ERROR)


@app.command(epilog="Example: vt demo")
def demo(
    workspace: WorkspaceOption = Path(".vt/demo"),
    profile: Annotated[str, typer.Option("--profile", help="CPU profile of the auditor.")] = "portable",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Tell the whole story on real data: train, audit on other arithmetic, then catch a cheating trainer."""
    with command(as_json, verbose, None):
        from flows.cli.demo import run_demo

        raise SystemExit(run_demo(workspace, profile, as_json, verbose))


signing.register(app)
evidence.register(app)
dispute.register(app)
calibrate.register(app)


def main() -> None:
    """Entry point; usage errors leave with code 3, like every other error of the user's."""
    try:
        app(standalone_mode=False)
    except typer.Exit as stop:
        raise SystemExit(stop.exit_code) from None
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except Exception as error:
        show_usage = getattr(error, "show", None)  # a usage error, of a class that Typer keeps to itself
        if show_usage is None:
            traceback.print_exc()  # a fault of ours; Python's own exit code 1 would pass for the verdict "rejected"
        else:
            show_usage()
        raise SystemExit(EXIT_ERROR) from None


if __name__ == "__main__":
    main()
