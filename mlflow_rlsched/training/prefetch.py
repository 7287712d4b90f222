"""Batches that are on the GPU when they are asked for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from mlflow_rlsched.training.data import ElasticDataLoader


class PrefetchLoader:
    """The batches of an ``ElasticDataLoader`` on a device, each copied while one before is used.

    ::

        loader = PrefetchLoader(ElasticDataLoader(dataset, session, num_workers=2), "cuda")
        for images, labels in loader:
            ...
            session.step(loss=loss, samples=loader.last_batch)

    Copies to a GPU go through pinned memory on a stream of their own, so that they overlap what is
    computed. One batch is read ahead there, so a new batch size comes one batch later; the place
    in the data is always that of the batch in use. On the CPU the batches pass as they are.

    Args:
        loader: Its batches are tensors, or mutable mappings, lists and tuples of them.
        device: Where they are to be, as torch names it.

    Attributes:
        last_batch: Samples of the batch in use, over all ranks.
    """

    def __init__(self, loader: ElasticDataLoader, device: Any) -> None:
        import torch

        self.last_batch = 0
        self._loader = loader
        self._copies = SideStream(device) if torch.device(device).type == "cuda" else None
        self._in_use: dict[str, int] | None = None  # its place, while another one is read ahead

    @property
    def epoch(self) -> int:
        """Epochs that were read to their end."""
        return self.state_dict()["epoch"]

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of the epoch."""
        if self._copies is None:
            for batch in self._loader:
                self.last_batch = self._loader.last_batch
                yield batch
        else:
            yield from self._ahead(self._copies)

    def state_dict(self) -> dict[str, int]:
        """The place in the data. See ``ElasticDataLoader.state_dict``."""
        return self._loader.state_dict() if self._in_use is None else self._in_use

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a place that ``state_dict`` gave, with the next loop."""
        self._loader.load_state_dict(state)

    def _ahead(self, copies: SideStream) -> Iterator[Any]:
        batches = iter(self._loader)
        following = self._read(batches, copies)
        try:
            while following is not None:
                copy, self.last_batch, self._in_use = following
                following = self._read(batches, copies)
                yield copies.finish(copy)
        finally:
            if following is not None and self._in_use is not None:
                self._loader.load_state_dict(self._in_use)  # the one read ahead comes again
            self._in_use = None

    def _read(
        self, batches: Iterator[Any], copies: SideStream
    ) -> tuple[Any, int, dict[str, int]] | None:
        for batch in batches:
            return copies.start(batch), self._loader.last_batch, self._loader.state_dict()
        return None


class SideStream:
    """Copies batches to a GPU beside what is computed on it.

    Args:
        device: The GPU.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = torch.device(device)
        self._stream = torch.cuda.Stream(self._device)

    def start(self, batch: Any) -> Any:
        """Begin to copy a batch; returns what ``finish`` takes."""
        with self._cuda.stream(self._stream):
            copy = _each(batch, self._move)
        return copy, self._stream.record_event()

    def finish(self, started: Any) -> Any:
        """The batch on the GPU, for the present stream: it waits for the copy, nobody else."""
        copy, copied = started
        present = self._cuda.current_stream(self._device)
        present.wait_event(copied)

        def keep(tensor: Any) -> Any:
            tensor.record_stream(present)  # its memory is that of the other stream
            return tensor

        return _each(copy, keep)

    def _move(self, tensor: Any) -> Any:
        if tensor.is_cpu:
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with each tensor in it changed."""
    if hasattr(value, "is_cuda"):
        return change(value)
    if isinstance(value, MutableMapping):
        copied = copy.copy(value)  # of its type, such as the batches of Hugging Face's collators
        copied.update({key: _each(item, change) for key, item in value.items()})
        return copied
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(item, change) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_each(item, change) for item in value)
    return value
