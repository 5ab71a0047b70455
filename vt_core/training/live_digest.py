"""The digest of a state that the next step already computes from.

A step reads parameters and optimizer state for most of its time and writes them at its end. Hashing them can wait for
gaps of that time, if nothing writes to them before they are hashed:

- buffers (running statistics change in the forward pass), small tensors and what shares memory with them are hashed
  at once, as are the scalars; so is what had to be copied anyway, from another device for instance;
- the rest is read in the background. :class:`GuardedMode` sees every operation and lets one that writes to that
  memory wait for the hash, and the session waits before the optimizer's phase.

So the digest is that of the state it was asked for, as long as state is written by PyTorch's operations inside a step.
Whoever writes to it in another way or outside a step calls :meth:`GuardedMode.settle` first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from vt_core.engine.mode import VerifiedMode
from vt_core.numerics import Grid
from vt_core.training.state import StateDigest, live_scalars, live_tensors
from vt_core.training.tensor_digest import Pending, state_root, tensor_roots

_LATER_FROM = 1 << 16  # bytes; a smaller tensor is hashed at once


class LiveDigest:
    """The digest of the live state after ``step``, in the making."""

    def __init__(self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, grid: Grid) -> None:
        """Hash what the next step may write early, and start hashing the rest."""
        self._step = step
        self._failed: BaseException | None = None
        tensors = live_tensors(model, optimizer)
        self._scalars = live_scalars(model, optimizer)
        later = _unwritten_until_the_update(tensors)
        self._now = tensor_roots({name: t for name, t in tensors.items() if name not in later}, grid)
        self._later = Pending(later, grid, background=True)

    @property
    def reads(self) -> set[int]:
        """Addresses of the storages that must not be written before :meth:`result` has returned."""
        return self._later.reads

    @property
    def failed(self) -> bool:
        """Whether :meth:`result` has raised."""
        return self._failed is not None

    def result(self) -> StateDigest:
        """Finish and return the digest; may be called again.

        What it once raised (a full memory, an interruption) it raises again: a chunk that was not hashed is lost, and
        a digest without it would be that of another state.
        """
        if self._failed is not None:
            raise self._failed
        try:
            return self._digest
        except BaseException as error:
            self._failed = error
            raise

    @cached_property
    def _digest(self) -> StateDigest:
        roots = self._now | self._later.result()
        return StateDigest(state_root(self._step, self._scalars, roots), roots)


class GuardedMode(VerifiedMode):  # type: ignore[no-untyped-call]
    """A dispatch mode in which an operation waits before it writes to memory that ``pending`` still reads."""

    pending: LiveDigest | None = None

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one ATen operation under its treatment."""
        if self.pending is not None:
            self._wait_for_writes(func, args, kwargs or {})
        return super().__torch_dispatch__(func, types, args, kwargs)

    def settle(self) -> None:
        """Wait until everything is hashed: afterwards the whole state may be written.

        Raises what hashing raised, unless somebody who asked for the digest was told already.
        """
        pending, self.pending = self.pending, None
        if pending is not None and not pending.failed:
            pending.result()

    def _wait_for_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self.pending is not None
        for position, name in self.plan(func).mutated:
            value = args[position] if position < len(args) else kwargs.get(name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() in self.pending.reads:
                    self.settle()
                    return


def _unwritten_until_the_update(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    early = {t.untyped_storage().data_ptr() for name, t in tensors.items() if name.startswith("buffer.")}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.numel() * tensor.element_size() >= _LATER_FROM and tensor.untyped_storage().data_ptr() not in early
    }
