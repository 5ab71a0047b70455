"""``vt verify``, ``prove``, ``check``, ``verify-model``, ``fetch-model``: evidence without a replay."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.cli.frame import command, store_url
from flows.cli.output import EXIT_INCONCLUSIVE, EXIT_REJECTED, EXIT_VERIFIED, err, out, print_json

EXIT_OF_EVIDENCE = {"verified-evidence": EXIT_VERIFIED, "rejected": EXIT_REJECTED, "inconclusive": EXIT_INCONCLUSIVE}
_COLOURS = {"verified-evidence": "green", "rejected": "red", "inconclusive": "yellow"}

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", envvar="VT_STORE", help="Evidence store: file:///path, a path, or s3://...")
]
ParamsOption = Annotated[Path, typer.Option("--params", help="Parameter file.")]
WorkspaceOption = Annotated[Path, typer.Option("--workspace", help="Folder for intermediate files.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def verify(
    run_id: RunArgument,
    store: StoreOption = None,
    params: ParamsOption = Path("params.yaml"),
    key: Annotated[str | None, typer.Option("--key", help="The trainer's public key: a file, or its text.")] = None,
    client_key: Annotated[
        str | None, typer.Option("--client-key", help="The client's public key: the agreement must bear it.")
    ] = None,
    auditor_key: Annotated[
        str | None, typer.Option("--auditor-key", help="An auditor's public key: which verdicts are its own?")
    ] = None,
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="Fetch all files and check their SHA-256 too.")
    ] = False,
    workspace: WorkspaceOption = Path(".vt"),
    as_json: JsonOption = False,
) -> None:
    """Verify a run's evidence without a replay: chain, roots, seal, signatures, verdicts, and the files if asked.

    Says that the trainer has committed to just this, not that it has trained so: that takes an audit. Leaves with 0 if
    the evidence is verified, 1 if rejected, 2 if it is not sealed or not signed.
    """
    with command(as_json, False, None):
        from tasks.runs import RunStore
        from tasks.signing import read_public
        from tasks.store import open_store
        from tasks.verifying import verify_run
        from vt_core.evidence.signatures import PartyKeys

        keys = PartyKeys(read_public(key), read_public(client_key))
        run = RunStore(open_store(store_url(store, params)), run_id)
        plain = verify_run(run, keys, read_public(auditor_key), artifacts, workspace)
        if as_json:
            print_json(plain)
        else:
            _print_evidence(plain)
        raise SystemExit(EXIT_OF_EVIDENCE[plain["result"]])


def prove(
    run_id: RunArgument,
    step: Annotated[
        int, typer.Option("--step", help="The step to prove; the first leaf at or after it counts.", min=0)
    ],
    target: Annotated[Path | None, typer.Option("--out", help="Write to this file, not to standard output.")] = None,
    store: StoreOption = None,
    params: ParamsOption = Path("params.yaml"),
    workspace: WorkspaceOption = Path(".vt"),
    as_json: Annotated[bool, typer.Option("--json", help="Accepted for symmetry: the proof is JSON.")] = False,
) -> None:
    """Write one file that proves which state the run commits to at a step; anybody can check it offline."""
    with command(as_json, False, None):
        from tasks.proving import prove_step
        from tasks.runs import RunStore
        from tasks.store import open_store

        with _findings(as_json):
            proof = prove_step(RunStore(open_store(store_url(store, params)), run_id), step, workspace)
        if target is not None:
            target.write_bytes(proof + b"\n")
        else:
            sys.stdout.buffer.write(proof + b"\n")
            sys.stdout.flush()


def check(
    file: Annotated[Path, typer.Argument(metavar="PROOF", help="A file of 'vt prove'.")],
    key: Annotated[str, typer.Option("--key", help="The trainer's public key: a file, or its text.")],
    as_json: JsonOption = False,
) -> None:
    """Check a proof offline: needs the file and the trainer's public key, and nothing else."""
    with command(as_json, False, None):
        from tasks.signing import read_file
        from vt_core.errors import EvidenceError
        from vt_core.evidence.keys import read_verifier_key
        from vt_core.evidence.proof import MAX_PROOF_BYTES, check_proof_file

        verifier = read_verifier_key(key)
        data = read_file(file, "the proof", MAX_PROOF_BYTES + 1)
        try:
            proven = dataclasses.asdict(check_proof_file(data, verifier))
        except EvidenceError as error:
            _end({"result": "rejected", "reason": error.reason, "message": str(error)}, as_json)
        message = f"run {proven['run_id']} commits to a state at step {proven['leaf_step']}"
        _end({"result": "verified-evidence", "reason": None, "message": message, **proven}, as_json)


def verify_model(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the checkpoint, or one of its files.")],
    attestation: Annotated[Path, typer.Option("--attestation", help="The model's model.dsse.json.")],
    key: Annotated[str, typer.Option("--key", help="The trainer's public key: a file, or its text.")],
    as_json: JsonOption = False,
) -> None:
    """Check a model against its attestation: signature, file digests, and the state root of its tensors."""
    with command(as_json, False, None):
        from tasks.signing import read_file
        from tasks.verifying import verify_model as check_it
        from vt_core.errors import EvidenceError
        from vt_core.evidence.keys import read_verifier_key

        verifier = read_verifier_key(key)
        data = read_file(attestation, "the attestation")
        try:
            plain = check_it(model, data, verifier)
        except EvidenceError as error:
            plain = {"result": "rejected", "reason": error.reason, "message": str(error)}
        _end(plain, as_json)


def fetch_model(
    run_id: RunArgument,
    target: Annotated[Path, typer.Option("--out", help="Folder for the model; a new or empty one.")],
    store: StoreOption = None,
    params: ParamsOption = Path("params.yaml"),
    workspace: WorkspaceOption = Path(".vt"),
    as_json: JsonOption = False,
) -> None:
    """Fetch a run's final model and its attestation from the store; each file has the committed SHA-256."""
    with command(as_json, False, None):
        from tasks.runs import RunStore
        from tasks.store import open_store
        from tasks.verifying import fetch_model as fetch

        with _findings(as_json):
            plain = fetch(RunStore(open_store(store_url(store, params)), run_id), target, workspace)
        if as_json:
            print_json(plain)
            return
        out.print(f"{', '.join(plain['files'])} of step {plain['step']} in {plain['folder']}", markup=False)
        if plain["attestation"] is None:
            out.print("there is no attestation: the run is not signed", style="yellow")
        else:
            command_line = f"vt verify-model {plain['folder']} --attestation {plain['attestation']} --key TRAINER.pub"
            out.print(f"check it: {command_line}", style="dim", markup=False)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(epilog="Example: vt verify RUN --store file://$PWD/store --key keys/trainer.pub")(verify)
    app.command(epilog="Example: vt prove RUN --step 7 > proof.json")(prove)
    app.command(epilog="Example: vt check proof.json --key keys/trainer.pub")(check)
    app.command(
        epilog="Example: vt verify-model model --attestation model/model.dsse.json --key keys/trainer.pub"
    )(verify_model)  # fmt: skip
    app.command(epilog="Example: vt fetch-model RUN --store s3://evidence/prod --out model")(fetch_model)


@contextmanager
def _findings(as_json: bool) -> Iterator[None]:
    """Leave with code 1 if the evidence is broken, and say so beside what a command writes to standard output."""
    from vt_core.errors import EvidenceError

    try:
        yield
    except EvidenceError as error:
        if as_json:
            print_json({"result": "rejected", "reason": error.reason, "message": str(error)})
        err.print(f"[bold red]rejected[/] ({escape(error.reason)}): {escape(str(error))}")
        raise SystemExit(EXIT_REJECTED) from None


def _end(plain: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(plain)
    else:
        _say(plain)
        for name in ("run_id", "step", "leaf_step", "state", "root", "spec", "signed_by"):
            if plain.get(name) is not None:
                out.print(f"  {name:10} {plain[name]}", markup=False)
    raise SystemExit(EXIT_OF_EVIDENCE[plain["result"]])


def _say(plain: dict[str, Any]) -> None:
    reason = f" ({plain['reason']})" if plain["reason"] else ""
    out.print(f"[bold {_COLOURS[plain['result']]}]{plain['result']}[/]{reason}: {escape(plain['message'])}")


def _print_evidence(plain: dict[str, Any]) -> None:
    _say(plain)
    if "segments" in plain:
        out.print(f"  run {plain['run_id']}: {plain['segments']} of {plain['segment_count']} segments, "
                  f"{plain['leaves']} leaves", markup=False)  # fmt: skip
        for name in ("spec", "root", "state"):
            out.print(f"  {name:6} {plain[name] or '-'}", markup=False)
        for what, signers in plain["signed_by"].items():
            shown = ", ".join(f"{s}{' (checked)' if s in plain['keys_checked'] else ''}" for s in signers)
            out.print(f"  {what} signed by {shown or 'nobody'}", markup=False)
        if plain["artifacts"] is not None:
            count, size = plain["artifacts"]["files"], plain["artifacts"]["bytes"]
            out.print(f"  {count} files of {size} bytes have the committed SHA-256", markup=False)
    for row in plain.get("verdicts", []):
        signers = ", ".join(row["signed_by"]) or "nobody"
        out.print(f"  verdict {row['verdict']} {row['reason'] or ''} of {row['time']}, signed by {signers}: "
                  f"{row['signature']}", markup=False)  # fmt: skip
    out.print(f"  {plain['seconds']} s; nothing was replayed: 'vt audit' does that", style="dim")
