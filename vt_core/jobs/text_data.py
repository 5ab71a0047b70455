"""Any UTF-8 text as a dataset of token blocks: bytes, or a byte-level BPE trained on that very text.

The BPE (Sennrich et al., arXiv 1508.07909, in the byte-level form of GPT-2) is trained by the ``tokenizers``
library, which gave the same ids over repeated runs and thread counts (``tests/jobs/test_text.py`` checks
it on the machine at hand). Nothing rests on that: the ids themselves are in the manifest, so a library that
tokenises differently is found before the first step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vt_core.errors import SpecError
from vt_core.jobs.parts import array_digest
from vt_core.training.job import Stream

MAX_BYTES = 1 << 30
"""Longest text: ids and text are held in memory (5 bytes and more for each byte of text)."""

BYTE_VALUES = 256

_PIECE = 1 << 20
"""Characters that the tokenizer sees at once; fixed, since a piece's edge is also a word's edge."""


class TextDataset:
    """Blocks of ``block`` tokens, one after another; the last part of the text is held out."""

    def __init__(self, content: bytes, ids: npt.NDArray[np.int32], block: int, hold_out: float) -> None:
        """Split ``ids`` (N,) int32, the tokens of ``content``.

        Raises SpecError where the training part is shorter than one block and the token after it.
        """
        held = int(len(ids) * hold_out)
        self.block = block
        self._ids, self._content = ids, content
        self.train, self.held_out = ids[: len(ids) - held], ids[len(ids) - held :]
        if len(self) < 1:
            raise SpecError(
                f"text is too short: {len(self.train)} training tokens (of {len(ids)}, {held} held out), "
                f"but one sample takes {block + 1}; use a longer text or a smaller block"
            )

    def __len__(self) -> int:
        """Return the number of training blocks; the tokens that fill no block are left out."""
        return max(0, (len(self.train) - 1) // self.block)

    def batch(self, indices: npt.NDArray[np.int64], stream: Stream) -> dict[str, npt.NDArray[Any]]:
        """Return ``tokens`` and ``targets``, both (B, block) int64; targets are the tokens one place on."""
        return self._blocks(self.train, indices)

    def held_out_batch(self, limit: int) -> dict[str, npt.NDArray[Any]] | None:
        """Return at most ``limit`` held-out blocks as :meth:`batch` does, or None if not one is filled."""
        count = min(limit, (len(self.held_out) - 1) // self.block)
        return None if count < 1 else self._blocks(self.held_out, np.arange(count))

    def manifest(self) -> dict[str, str]:
        """Return the digests of the text's bytes and of all its token ids (held-out ones too)."""
        return {"text": hashlib.sha256(self._content).hexdigest(), "tokens": array_digest(self._ids)}

    def _blocks(self, ids: npt.NDArray[np.int32], indices: npt.NDArray[np.int64]) -> dict[str, npt.NDArray[Any]]:
        places = indices[:, None] * self.block + np.arange(self.block + 1)
        chosen = ids[places].astype(np.int64)
        return {"tokens": chosen[:, :-1].copy(), "targets": chosen[:, 1:].copy()}


def load_text(location: str | None, tokens: str, vocabulary: int, block: int, hold_out: float) -> TextDataset:
    """Read the file ``location`` and turn it into ids below ``vocabulary``.

    ``tokens`` is "byte" (256 ids) or "bpe" (at most ``vocabulary`` ids, fewer if the text has no more pairs).
    Raises SpecError for a file that is absent, empty, above 1 GiB, too short or no UTF-8 (with the byte's
    offset).
    """
    content = read_text(location)
    ids = byte_ids(content) if tokens == "byte" else bpe_ids(content.decode(), vocabulary)
    return TextDataset(content, ids, block, hold_out)


def read_text(location: str | None) -> bytes:
    """Return the content of a UTF-8 file; raises SpecError as :func:`load_text` says."""
    if location is None:
        raise SpecError("the text job needs the data's location: a UTF-8 text file")
    file = Path(location)
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise SpecError(f"text {file} has {size} bytes; at most {MAX_BYTES} are supported: use a part of it")
        content = file.read_bytes()
    except OSError as exc:
        raise SpecError(f"cannot read the text {file}: {exc.strerror}") from exc
    if not content:
        raise SpecError(f"text {file} is empty")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise SpecError(
            f"text {file} is not UTF-8: {exc.reason} at byte offset {exc.start} "
            f"(0x{content[exc.start]:02x}); convert it, for example with iconv"
        ) from exc
    return content


def byte_ids(content: bytes) -> npt.NDArray[np.int32]:
    """Return the bytes as ids, int32 (N,)."""
    return np.frombuffer(content, dtype=np.uint8).astype(np.int32)


def bpe_ids(text: str, vocabulary: int) -> npt.NDArray[np.int32]:
    """Return the ids, int32 (N,), of a byte-level BPE with at most ``vocabulary`` tokens trained on it."""
    tokenizer = train_bpe(text, vocabulary)
    pieces = [
        np.array(encoding.ids, dtype=np.int32)
        for group in _grouped(_pieces(text), 16)
        for encoding in tokenizer.encode_batch(group, add_special_tokens=False)
    ]
    return np.concatenate(pieces)


def train_bpe(text: str, vocabulary: int) -> Any:
    """Return a ``tokenizers.Tokenizer`` trained on ``text``; its first 256 ids are the single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        show_progress=False,
        # All 256 bytes, so that any text has ids; sorted, since the library gives a list of no stated order.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_pieces(text), trainer=trainer)
    return tokenizer


def _pieces(text: str) -> Iterator[str]:
    """Yield ``text`` in parts of about a million characters that end after a line break if there is one."""
    first = 0
    while first < len(text):
        stop = first + _PIECE
        if stop < len(text):
            line = text.rfind("\n", first, stop)
            stop = line + 1 if line >= first else stop
        yield text[first:stop]
        first = stop


def _grouped(pieces: Iterator[str], size: int) -> Iterator[list[str]]:
    group: list[str] = []
    for piece in pieces:
        group.append(piece)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
