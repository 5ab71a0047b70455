"""Which module an operation belongs to, in the forward and in the backward pass.

Forward: a stack kept by global module hooks. Backward: autograd gives every node the sequence number that was
current when its forward operation ran, so the module of that moment is looked up by the number of the node that
is running now. Names are for people who read a finding; nothing depends on them.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks
from torch.utils.hooks import RemovableHandle

_grad_enabled, _sequence_number = torch.is_grad_enabled, torch._C._autograd._get_sequence_nr


class ModuleTracker:
    """Context manager that knows the path of the module that is running."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._stack: list[str] = []
        self._by_sequence: dict[int, str] = {}
        self._handles: list[RemovableHandle] = []
        self.phase = "init"

    def watch(self, model: nn.Module) -> None:
        """Take the names of the model's submodules; the model itself is called by its class name."""
        self._paths = {id(m): name or type(model).__name__ for name, m in model.named_modules()}

    def begin_step(self) -> None:
        """Forget the sequence numbers of the last step."""
        self._by_sequence.clear()
        self._stack.clear()

    def note(self) -> None:
        """Remember the current module for the autograd node of the operation that runs now."""
        if self._stack and _grad_enabled():
            # An operation without gradient makes no node: it must not take over the one before it.
            self._by_sequence.setdefault(_sequence_number() - 1, self._stack[-1])

    def current(self) -> str:
        """Return the path of the module that runs now, or the phase of the step."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is not None:
            return f"{self._by_sequence.get(node._sequence_nr(), 'loss')} (backward)"
        return self.phase

    def __enter__(self) -> ModuleTracker:
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter_module),
            module_hooks.register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _enter_module(self, module: nn.Module, _inputs: Any) -> None:
        self._stack.append(self._paths.get(id(module), type(module).__name__))

    def _leave_module(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        if self._stack:
            self._stack.pop()
