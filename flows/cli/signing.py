"""``vt keygen``, ``vt spec``, ``vt seal``: keys, the agreed spec, and the signature on a finished run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from flows.cli.frame import command, store_url
from flows.cli.output import EXIT_REJECTED, err, out, print_json

OutOption = Annotated[Path | None, typer.Option("--out", help="Write to this file instead of standard output.")]


def keygen(
    target: Annotated[Path, typer.Option("--out", help="Folder for the keys.")] = Path("keys"),
    name: Annotated[
        list[str] | None, typer.Option("--name", help="Name of a key; repeatable. Default: one for each party.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Make Ed25519 keys: NAME (private, for its owner alone) and NAME.pub (to hand out). None is ever overwritten."""
    with command(as_json, False, None):
        from vt_core.errors import SpecError
        from vt_core.evidence.keys import DEFAULT_NAMES, write_key_pair

        names = list(dict.fromkeys(name or DEFAULT_NAMES))
        taken = [str(path) for n in names for path in (target / n, target / f"{n}.pub") if path.exists()]
        if taken:  # all or none: half a set of keys is a trap
            raise SpecError(f"{', '.join(taken)} is there already and is not overwritten; give another --out or --name")
        keys = [write_key_pair(target, n).verifier for n in names]
        rows = [
            {"name": k.name, "keyid": k.keyid, "private": str(target / k.name), "public": str(target / f"{k.name}.pub"),
             "verifier_key": k.text}
            for k in keys
        ]  # fmt: skip
        if as_json:
            print_json({"keys": rows})
            return
        for row in rows:
            out.print(f"{row['public']}  {row['verifier_key']}", markup=False)
        out.print("the files without .pub are private: give each to its party alone, and keep a copy", style="dim")


def spec(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A spec; without it one is made from the parameters.")
    ] = None,
    params: Annotated[Path, typer.Option("--params", help="Parameter file.")] = Path("params.yaml"),
    sign: Annotated[
        list[str] | None, typer.Option("--sign", "--add-signature", help="Private key to sign with; repeatable.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check FILE: its form, and the signatures of each --key.")
    ] = False,
    key: Annotated[list[str] | None, typer.Option("--key", help="Public key for --check; repeatable.")] = None,
    facts: Annotated[
        bool | None,
        typer.Option(
            "--facts/--no-facts",
            help="Agree on inputs and program of the steps too, so that a judge can rule on them without code or data; "
            "for a FILE, check those it holds before signing. Default: with --sign.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Say what is agreed on, for people.")] = False,
    target: OutOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --check or --show: print one JSON object.")] = False,
) -> None:
    """Print the canonical run spec, signed by the parties (a DSSE envelope) if --sign is given.

    Client and trainer both sign it before training. A second party checks it and adds its own signature with
    --add-signature. What is not in the spec (where the data lies, the device, the store) is each side's own business.
    """
    with command(as_json, False, None):
        from tasks.signing import read_keys, read_spec
        from vt_core.errors import EvidenceError, SpecError
        from vt_core.evidence.agreement import read_spec_file, sign_spec, with_signature

        if check:
            if file is None:
                raise SpecError("--check needs a FILE: vt spec --check spec.json --key keys/client.pub")
            raise SystemExit(_check(file, key or [], as_json))
        if key:
            raise SpecError("--key goes with --check; to sign, give the private key with --sign")
        keys = read_keys(sign or [])
        if file is None:
            from tasks.params import load_params

            own = load_params(params)
            job, dataset = own.open_job()
            made = own.spec(job, dataset)
            if facts if facts is not None else bool(keys):
                from tasks.agreeing import with_facts

                made = with_facts(made, job, dataset, own.device)
            document = made.to_bytes()
            document = sign_spec(document, keys) if keys else document
        else:
            try:
                agreed = read_spec(file)
                document = agreed.envelope or agreed.spec
                if keys and facts is not False:
                    from tasks.agreeing import check_facts
                    from tasks.params import load_params

                    check_facts(agreed.spec, load_params(params) if params.exists() else None)
                for one in keys:
                    document = with_signature(read_spec_file(document, file.name), one)
            except EvidenceError as error:
                raise SpecError(str(error)) from error
        if show:
            described = _describe(read_spec_file(document, "the spec"))
            if as_json:
                print_json(described)
            else:
                _print(described)
        if target is not None:
            _write(target, document)
        elif not show:
            sys.stdout.buffer.write(document + b"\n")
            sys.stdout.flush()


def seal(
    run_id: Annotated[str, typer.Argument(metavar="RUN", help="Run id.")],
    key: Annotated[Path, typer.Option("--key", envvar="VT_KEY", help="The trainer's private key.")],
    store: Annotated[
        str | None, typer.Option("--store", envvar="VT_STORE", help="Evidence store: file:///path, a path, or s3://...")
    ] = None,
    params: Annotated[Path, typer.Option("--params", help="Parameter file.")] = Path("params.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Sign a finished run: the seal as a C2SP checkpoint, and an in-toto attestation of the final model.

    A run trained with a key is signed already; signing again with the same key changes nothing.
    """
    with command(as_json, False, None):
        from tasks.runs import RunStore
        from tasks.signing import sign_run
        from tasks.store import open_store
        from vt_core.errors import EvidenceError
        from vt_core.evidence.keys import read_signer_key

        signer = read_signer_key(key)
        try:
            plain = sign_run(RunStore(open_store(store_url(store, params)), run_id), signer)
        except EvidenceError as error:
            if as_json:
                print_json({"result": "rejected", "reason": error.reason, "message": str(error)})
            err.print(f"[bold red]rejected[/] ({error.reason}), so nothing was signed: {escape(str(error))}")
            raise SystemExit(EXIT_REJECTED) from None
        if as_json:
            print_json(plain)
        else:
            out.print(f"[bold green]signed[/]: run {escape(plain['run_id'])} by {escape(plain['signed_by'])}")
            out.print(f"  state {plain['state']}\n  root  {plain['root']}")


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command(epilog="Example: vt keygen --out keys")(keygen)
    app.command(epilog="Example: vt spec --params params.yaml --sign keys/client --sign keys/trainer > spec.json")(spec)
    app.command(epilog="Example: vt seal RUN --key keys/trainer")(seal)


def _check(file: Path, keys: list[str], as_json: bool) -> int:
    """Check a spec and its signatures; returns the exit code."""
    from tasks.signing import read_file
    from vt_core.errors import EvidenceError
    from vt_core.evidence.agreement import read_spec_file
    from vt_core.evidence.keys import read_verifier_key

    verifiers = [read_verifier_key(text) for text in keys]
    plain: dict[str, Any] = {"result": "verified-evidence", "reason": None, "message": "", "checked": []}
    data = read_file(file, "the run spec")
    try:
        agreed = read_spec_file(data, file.name)
        plain |= {"spec": agreed.outline.digest, "signers": list(agreed.signers)}
        for verifier in verifiers:
            agreed.verify(verifier)
            plain["checked"].append(verifier.keyid)
        checked = ", ".join(plain["checked"]) or "nobody whose key was given"
        plain["message"] = f"the spec {agreed.outline.digest} is well formed and signed by {checked}"
    except EvidenceError as error:
        plain |= {"result": "rejected", "reason": error.reason, "message": str(error)}
    if as_json:
        print_json(plain)
    else:
        good = plain["result"] != "rejected"
        out.print(f"[bold {'green' if good else 'red'}]{plain['result']}[/]: {escape(plain['message'])}")
    return 0 if plain["result"] != "rejected" else EXIT_REJECTED


def _describe(agreed: Any) -> dict[str, Any]:
    plain = {name: value for name, value in agreed.outline.plain.items() if name != "format"}
    long = {name: plain.pop(name) for name in ("libraries", "sources", "manifest", "policy") if name in plain}
    head = {"spec": agreed.outline.digest, "signers": list(agreed.signers), "segments": agreed.outline.segment_count}
    return {**head, "reference": plain.pop("reference"), **plain, **long}


def _print(described: dict[str, Any]) -> None:
    for name, value in described.items():
        if isinstance(value, dict):
            parts = ", ".join(f"{k} {str(v)[:48]}" for k, v in value.items()) or "-"
            out.print(f"{name:16} {parts}", markup=False)
        elif isinstance(value, list):
            out.print(f"{name:16} {', '.join(map(str, value)) or 'nobody (not checked here: --check)'}", markup=False)
        else:
            out.print(f"{name:16} {value}", markup=False)


def _write(target: Path, document: bytes) -> None:
    """Write a document; a file that is replaced is replaced as a whole."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    temporary.write_bytes(document + b"\n")
    temporary.replace(target)
    err.print(f"written to {escape(str(target))}")
