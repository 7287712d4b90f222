"""Gradient noise from the gradients that a training computes anyway.

The noise scale tr(Σ) / |G|² is the batch size at which a sample more begins to pay less (Σ: the
covariance of one sample's gradient, G: the true gradient). McCandlish et al. 2018, "An Empirical
Model of Large-Batch Training", appendix A.1, estimate both parts from gradients of two batch
sizes. Here the small batches are, in this order:

- the micro-batches of a step that accumulates gradients,
- one rank's part of a batch, against the mean of all ranks (``DistributedDataParallel``),
- the batches of two steps that follow each other, the parameters having hardly moved; as AdaptDL
  does on one device (Qiao et al. 2021, "Pollux", section 4.1).

Norms are those before clipping, save the last kind's. With a ``GradScaler`` the first two are in
units of the scaled loss; tr(Σ) / |G|² is not touched by that. Several backward passes before a
step are taken for micro-batches. There are no statistics for sparse or sharded gradients, nor for
a model on several devices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mlflow_rlsched.training import distributed
from mlflow_rlsched.training.reporter import HostCopy

EVERY_S = 1.0
SHARE = 0.005
"""Of the training's time that may go into this, on average."""

_MAX_ELEMENTS = 2**16
_MAX_PARTS = 8


@dataclass(frozen=True)
class _Layout:
    """Evenly spaced elements of all gradients in one vector: all of them up to _MAX_ELEMENTS.

    So a sample costs a large model little time and memory. Each is weighted so that the expected
    squared norm is the one of the whole gradient.

    Attributes:
        pieces: Each parameter, where its elements begin and end in the vector, and their weight.
        stride: One element of ``stride`` is taken.
        length: Elements of the vector.
    """

    pieces: list[tuple[Any, int, int, float]]
    stride: int
    length: int

    @classmethod
    def of(cls, parameters: list[Any]) -> _Layout:
        stride = math.ceil(sum(p.numel() for p in parameters) / _MAX_ELEMENTS)
        while math.gcd(stride, 6) > 1:  # else it may hit but some columns of a matrix
            stride += 1
        pieces, end = [], 0
        for parameter in parameters:
            taken = math.ceil(parameter.numel() / stride)
            weight = math.sqrt(parameter.numel() / taken)
            pieces.append((parameter, end, end + taken, weight))
            end += taken
        return cls(pieces, stride, end)

    def zeros(self) -> Any:
        import torch

        return torch.zeros(self.length, device=self.pieces[0][0].device)

    def write(self, vector: Any, index: int, gradient: Any) -> None:
        _, start, end, weight = self.pieces[index]
        piece = vector[start:end]
        piece.copy_(gradient.detach().reshape(-1)[:: self.stride])
        if weight != 1.0:
            piece.mul_(weight)

    def gather(self) -> Any:
        """The vector of the gradients that the parameters hold."""
        vector = self.zeros()
        for index, (parameter, *_) in enumerate(self.pieces):
            if parameter.grad is not None:
                self.write(vector, index, parameter.grad)
        return vector


@dataclass(frozen=True)
class _Sample:
    """What a step says about the noise, in units of its gradients.

    Attributes:
        scalars: Tensor of: the variance of the gradient of a part, the squared norm of the mean
            of all parts, the squared norm of the gradient of one step.
        parts: How many gradients the mean is of.
        share: Samples of a part per sample of a step.
    """

    scalars: Any
    parts: int
    share: float

    @classmethod
    def of_parts(cls, vectors: list[Any], passes: int, ranks: int) -> _Sample:
        """From the gradients of the backward passes that were added up for one step."""
        import torch

        parts = torch.stack(vectors) * passes
        mean_sqr = parts.mean(0).square().sum()
        scalars = torch.stack([parts.var(0).sum(), mean_sqr, mean_sqr])
        return cls(scalars, len(vectors), 1 / (passes * ranks))

    @classmethod
    def of_ranks(cls, own: Any, mean: Any, ranks: int) -> _Sample:
        """From this rank's gradient and the mean of all ranks."""
        import torch

        variance = (own - mean).square().sum() * (ranks / (ranks - 1))
        mean_sqr = mean.square().sum()
        return cls(torch.stack([variance, mean_sqr, mean_sqr]), ranks, 1 / ranks)

    @classmethod
    def of_steps(cls, first: Any, second: Any) -> _Sample:
        """From the gradients of two steps that followed each other."""
        import torch

        variance = (first - second).square().sum() / 2
        mean_sqr = ((first + second) / 2).square().sum()
        return cls(torch.stack([variance, mean_sqr, second.square().sum()]), 2, 1.0)


class GradientProbe:
    """Takes a sample now and then; on rank 0 only, and never waiting for a device.

    Calls follow in this order: ``arm``, then with each step of the training ``stepped``, until
    ``armed`` is false again; later ``read``.

    Attributes:
        armed: Whether the steps of the training are to be counted.
    """

    def __init__(self, optimizer: Any) -> None:
        self.armed = False
        self._optimizer = optimizer
        self._due = 0.0
        self._reduces = True  # until seen otherwise, backward passes of several ranks do
        self._pending: tuple[_Sample, float, HostCopy] | None = None

    def arm(self, now: float) -> None:
        """Take a sample of the next step (or two) when it is time, at ``now`` in seconds."""
        if self.armed or now < self._due or self._pending is not None or distributed.rank() != 0:
            return
        started = time.perf_counter()
        groups = self._optimizer.param_groups
        candidates = [p for group in groups for p in group["params"]]
        parameters = [p for p in candidates if p.requires_grad and p.numel()]
        if not _is_supported(parameters):
            self._due = math.inf
            return
        self.armed = True
        self._layout = _Layout.of(parameters)
        self._counts = [0] * len(parameters)
        self._vectors: list[Any] = []  # of the backward passes
        self._reduced: Any = None  # at the end of the first of them
        self._previous: tuple[Any, int] | None = None  # of the step before, and its samples
        self._current: Any = None
        self._sample: _Sample | None = None
        self._step_hook = self._optimizer.register_step_pre_hook(self._timed(self._on_step))
        self._hooks = [
            parameter.register_hook(self._timed(partial(self._on_gradient, index)))
            for index, parameter in enumerate(parameters)
        ]
        self._cost_s = time.perf_counter() - started

    def stepped(self, samples: int, now: float) -> None:
        """Count a step of the training with ``samples`` samples over all ranks."""
        if self._sample is not None and samples > 0:
            size = samples if self._previous is None else 2 / (1 / samples + 1 / self._previous[1])
            self._pending = self._sample, size, HostCopy(self._sample.scalars)
        elif self._current is not None and self._previous is None and samples > 0:
            self._previous, self._current = (self._current, samples), None
            return
        self._disarm()  # also when the optimizer made no step
        self._due = now + max(EVERY_S, self._cost_s / SHARE)

    def read(self) -> dict[str, float]:
        """``grad_sqr``, ``grad_var``, ``grad_norm`` of a sample that has arrived; else nothing."""
        if self._pending is None or (values := self._pending[2].values()) is None:
            return {}
        sample, samples, _ = self._pending
        self._pending = None
        variance, mean_sqr, norm_sqr = values
        if variance == 0 and distributed.world_size() > 1:
            self._reduces = False  # the training averages over the ranks after the backward pass
            return {}
        if not math.isfinite(variance + mean_sqr + norm_sqr):
            return {}
        return {
            "grad_var": variance * samples * sample.share,
            "grad_sqr": mean_sqr - variance / sample.parts,
            "grad_norm": math.sqrt(norm_sqr),
        }

    def _timed(self, hook: Callable[..., None]) -> Callable[..., None]:
        def timed(*values: Any) -> None:
            started = time.perf_counter()
            hook(*values)
            self._cost_s += time.perf_counter() - started

        return timed

    def _on_gradient(self, index: int, gradient: Any) -> None:
        """A backward pass reached a parameter; no other rank's gradient is in it yet."""
        number = self._counts[index]
        self._counts[index] += 1
        if number >= _MAX_PARTS:
            return
        if number == len(self._vectors):
            self._vectors.append(self._layout.zeros())
            if number == 0 and distributed.world_size() > 1:
                self._when_reduced()
        self._layout.write(self._vectors[number], index, gradient)

    def _when_reduced(self) -> None:
        import torch

        def take() -> None:
            self._reduced = self._layout.gather()

        # Callbacks run when the backward pass has ended, in the order in which they were queued;
        # DistributedDataParallel queues the end of its all-reduce after this one.
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: queue(self._timed(take)))

    def _on_step(self, *_: Any) -> None:
        """The optimizer is about to step."""
        if self._sample is not None or self._current is not None:
            return
        self._release(self._hooks)
        passes = set(self._counts) - {0}
        ranks = distributed.world_size()
        if len(passes) == 1 and max(passes) > 1:
            self._sample = _Sample.of_parts(self._vectors, max(passes), ranks)
        elif self._reduced is not None and passes == {1} and self._reduces:
            self._sample = _Sample.of_ranks(self._vectors[0], self._reduced, ranks)
        else:
            self._current = self._layout.gather()
            if self._previous is not None:
                self._sample = _Sample.of_steps(self._previous[0], self._current)
        self._vectors, self._reduced = [], None

    def _disarm(self) -> None:
        self.armed = False
        self._release([*self._hooks, self._step_hook])
        self._previous = self._current = self._sample = None

    @staticmethod
    def _release(hooks: list[Any]) -> None:
        for hook in hooks:
            hook.remove()


def _is_supported(parameters: list[Any]) -> bool:
    """Whether their gradients are dense, whole (``FSDP`` shards them) and on one device."""
    return len({p.device for p in parameters}) == 1 and all(
        p.is_floating_point() and not hasattr(p, "to_local") and not hasattr(p, "_fsdp_flattened")
        for p in parameters
    )
