"""GPT-2 and its text: sizes, causality, tokens, manifest, malformed text."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vt_core.errors import SpecError
from vt_core.jobs import text_data
from vt_core.jobs.gpt2 import SIZES, Gpt2
from vt_core.jobs.gpt2_text import Gpt2TextJob
from vt_core.jobs.text_data import bpe_ids, load_text, train_bpe


@pytest.mark.parametrize(
    ("size", "parameters"), [("124M", 124_439_808), ("355M", 354_823_168), ("1558M", 1_557_611_200)]
)
def test_parameter_counts_are_the_published_ones(size: str, parameters: int) -> None:
    with torch.device("meta"):
        model = Gpt2(SIZES[size], 0.1)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert len(model.state_dict()) == len(list(model.parameters()))  # no tensor under two names


def test_no_token_sees_a_later_one() -> None:
    torch.manual_seed(0)
    model = Gpt2(SIZES["nano"], 0.1).eval()
    tokens = torch.arange(20)[None] % 7
    changed = tokens.clone()
    changed[0, 12] = 99
    a, b = model(tokens), model(changed)
    assert torch.equal(a[:, :12], b[:, :12])
    assert not torch.isclose(a[:, 12:], b[:, 12:]).all(dim=2).any()


def test_initial_weights_have_the_scales_of_gpt2() -> None:
    torch.manual_seed(0)
    model = Gpt2(SIZES["tiny"], 0.1)
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            assert not p.any(), name
        elif p.ndim == 1:
            assert (p == 1).all(), name
        else:
            want = 0.02 / math.sqrt(8) if name.endswith("project.weight") else 0.02
            assert float(p.detach().std()) == pytest.approx(want, rel=0.03), name
    # A model that knows nothing is as good as a uniform guess.
    loss = Gpt2TextJob("tiny").loss(
        model.eval(),
        {"tokens": torch.zeros(2, 9, dtype=torch.int64), "targets": torch.ones(2, 9, dtype=torch.int64)},
    )
    assert float(loss.detach()) == pytest.approx(math.log(512), rel=0.05)


def test_only_matrices_decay() -> None:
    job = Gpt2TextJob()
    groups = job.build_optimizer(job.build_model()).param_groups
    assert {(p.ndim >= 2, g["weight_decay"]) for g in groups for p in g["params"]} == {
        (True, 0.1),
        (False, 0.0),
    }


def test_too_long_a_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit a context of 128"):
        Gpt2(SIZES["nano"], 0.0)(torch.zeros(1, 129, dtype=torch.int64))


def test_targets_are_the_next_tokens_and_blocks_follow_each_other(text_file: Path, stream: Any) -> None:
    data = load_text(str(text_file), "byte", 256, block=16, hold_out=0.0)
    content = text_file.read_bytes()
    batch = data.batch(np.array([0, 1, len(data) - 1]), stream(1))
    assert bytes(batch["tokens"][0].tolist()) == content[:16]
    assert bytes(batch["targets"][0].tolist()) == content[1:17]
    assert bytes(batch["tokens"][1].tolist()) == content[16:32]
    last = 16 * (len(data) - 1)
    assert bytes(batch["targets"][2].tolist()) == content[last + 1 : last + 17]
    assert len(content) - 17 < last + 16 <= len(content) - 1  # no further block would fit
    other = data.batch(np.array([0, 1, len(data) - 1]), stream(2))
    assert all(np.array_equal(batch[n], other[n]) for n in batch)


def test_held_out_tokens_are_never_trained_on(tmp_path: Path, stream: Any) -> None:
    file = tmp_path / "t"
    file.write_bytes(b"a" * 900 + b"z" * 100)
    data = load_text(str(file), "byte", 256, block=10, hold_out=0.1)
    trained = data.batch(np.arange(len(data)), stream(1))
    assert set(trained["tokens"].flat) | set(trained["targets"].flat) == {ord("a")}
    held = data.held_out_batch(64)
    assert held is not None and held["tokens"].shape == (9, 10) and set(held["tokens"].flat) == {ord("z")}


@pytest.mark.parametrize("piece", [1 << 20, 1000, 7])
def test_bpe_gives_the_text_back(text_file: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_data, "_PIECE", piece)
    text = text_file.read_text(encoding="utf-8")
    tokenizer = train_bpe(text, 400)
    ids = bpe_ids(text, 400)
    assert tokenizer.decode(ids.tolist()) == text
    assert len(ids) < len(text.encode())
    assert 256 <= ids.max() < 400


def test_bpe_knows_every_byte_also_those_not_in_the_text(text_file: Path) -> None:
    tokenizer = train_bpe(text_file.read_text(encoding="utf-8"), 300)
    assert tokenizer.get_vocab_size() == 300
    strange = "\x00\x7f\u0416\U0001f9ea\u4e2d\r\n\t"
    assert tokenizer.decode(tokenizer.encode(strange).ids) == strange


def test_bpe_stops_where_no_pair_repeats(tmp_path: Path) -> None:
    file = tmp_path / "t"
    file.write_text("abcdefghijklmnopqrstuvwxyz" * 1, encoding="utf-8")
    data = load_text(str(file), "bpe", 50257, block=4, hold_out=0.0)
    assert data.train.max() < 256 and len(data.train) == 26


_DIGEST = """
import hashlib, sys
from pathlib import Path
from vt_core.jobs.text_data import bpe_ids
print(hashlib.sha256(bpe_ids(Path(sys.argv[1]).read_text(encoding="utf-8"), 600).tobytes()).hexdigest())
"""


@pytest.mark.parametrize("source", ["synthetic", "real"])
def test_bpe_is_the_same_over_runs_and_thread_counts(
    source: str, text_file: Path, request: pytest.FixtureRequest
) -> None:
    file = text_file
    if source == "real":
        file = request.getfixturevalue("real_data") / "tiny-shakespeare.txt"
        if not file.is_file():
            pytest.skip(f"{file} is absent")
    want = hashlib.sha256(bpe_ids(file.read_text(encoding="utf-8"), 600).tobytes()).hexdigest()
    for setting in (
        {"RAYON_NUM_THREADS": "1"},
        {"RAYON_NUM_THREADS": "5"},
        {"TOKENIZERS_PARALLELISM": "false"},
    ):
        environment = {**os.environ, **setting, "PYTHONHASHSEED": "7"}
        run = subprocess.run(
            [sys.executable, "-c", _DIGEST, str(file)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.stdout.strip() == want, (setting, run.stderr)


@pytest.mark.parametrize("tokens", ["byte", "bpe"])
def test_manifest_follows_content_and_not_place(text_file: Path, tmp_path: Path, tokens: str) -> None:
    def manifest(file: Path) -> dict[str, str]:
        return load_text(str(file), tokens, 300, 16, 0.1).manifest()

    original = manifest(text_file)
    assert original["text"] == hashlib.sha256(text_file.read_bytes()).hexdigest()
    moved = text_file.rename(tmp_path / "other name.md")
    assert manifest(moved) == original
    content = bytearray(moved.read_bytes())
    place = content.index(b"fox", 500)
    content[place] ^= 1
    moved.write_bytes(content)
    changed = manifest(moved)
    assert changed["text"] != original["text"] and changed["tokens"] != original["tokens"]


def test_manifest_shows_other_tokens_of_the_same_text(text_file: Path) -> None:
    one = load_text(str(text_file), "bpe", 300, 16, 0.1).manifest()
    two = load_text(str(text_file), "bpe", 301, 16, 0.1).manifest()
    assert one["text"] == two["text"] and one["tokens"] != two["tokens"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"fine \xff then", r"not UTF-8: .* at byte offset 5 \(0xff\)"),
        (b"x" * 300 + b"\xe2\x82", "at byte offset 300"),
        (b"\xc0\xafoverlong", "at byte offset 0"),
        (b"short", "too short: 5 training tokens .* takes 65"),
        (b"only a few blocks fit " * 20, "6 blocks of 64 tokens do not fill a batch of 8"),
    ],
    ids=["empty", "bad-byte", "cut-off-character", "overlong-form", "too-short", "less-than-a-batch"],
)
def test_unusable_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "text"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        Gpt2TextJob(batch_size=8, hold_out=0.0).dataset(str(file))


def test_over_long_text_is_refused_before_it_is_read(text_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = text_file.stat().st_size
    monkeypatch.setattr(text_data, "MAX_BYTES", size)
    Gpt2TextJob().dataset(str(text_file))
    monkeypatch.setattr(text_data, "MAX_BYTES", size - 1)
    with pytest.raises(SpecError, match=f"has {size} bytes; at most {size - 1}"):
        Gpt2TextJob().dataset(str(text_file))


@pytest.mark.parametrize("location", [None, "absent.txt", "."])
def test_absent_text_is_refused(location: str | None, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"location|cannot read"):
        Gpt2TextJob().dataset(None if location is None else str(tmp_path / location))


@pytest.mark.parametrize(
    "args",
    [
        {"size": "huge"},
        {"block": 129},
        {"block": 0},
        {"tokens": "word"},
        {"vocab_size": 255},
        {"betas": [0.9]},
        {"betas": "ab"},
        {"betas": [0.9, 1.0]},
        {"hold_out": 1},
        {"clip_norm": -1.0},
        {"total_steps": -3},
    ],
    ids=str,
)
def test_unusable_arguments_are_refused_by_name(args: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(args)).rstrip("s")):
        Gpt2TextJob(**args)
