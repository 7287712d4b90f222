"""A data loader whose batch size changes between two batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from mlflow_rlsched.training import distributed
from mlflow_rlsched.training.knobs import Knobs
from mlflow_rlsched.training.session import Session

_OURS = ("batch_size", "sampler", "batch_sampler")


class ElasticDataLoader:
    """Batches of ``session.knobs.batch_size`` samples over all ranks, each sample once an epoch.

    ::

        loader = ElasticDataLoader(dataset, session, epochs=30)
        while loader.epoch < 30:
            for batch in loader:          # what is left of the epoch
                ...
                session.step(loss=loss, samples=loader.last_batch)

    The knob is looked at before every batch: after a change the very next batch has the new size,
    with workers too (what these had prepared is thrown away and read again).

    The place in the epoch is kept when the loop is left, and is part of ``state_dict``: the next
    loop goes on there, in a later attempt with any batch size and any number of ranks.

    Each rank gets an even share of a batch, so a batch has at least one sample per rank. Batch
    normalisation needs two: where a rank would get but one of the last batch, and batches are
    larger than that, these samples are added to the batch before.

    Args:
        dataset: Has a length, and items by index.
        session: Its knobs have a batch size; it is told the size of the dataset.
        shuffle: Whether each epoch has an order of its own, made from ``seed`` and its number.
        seed: The same on all ranks.
        drop_last: Whether to leave out a last batch that is not full.
        micro_batches: Parts in which each batch comes, for a training that adds up the gradients of
            so many before a step.
        epochs: Epochs of the whole training, so that the session reports its progress.
        options: Of ``torch.utils.data.DataLoader``: ``num_workers``, ``collate_fn`` and so on.
            Workers live on from epoch to epoch unless ``persistent_workers=False`` is given.

    Attributes:
        dataset: As it was given.
        drop_last: As it was given.
        last_batch: Samples of the last batch over all ranks, with all its parts.

    Raises:
        TypeError: The dataset has no length, or an option is one that the loader sets itself.
        ValueError: The session has no batch size, or there are fewer samples than parts of a batch
            over all ranks.
    """

    def __init__(
        self,
        dataset: Any,
        session: Session,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        micro_batches: int = 1,
        epochs: float | None = None,
        **options: Any,
    ) -> None:
        import torch
        from torch.utils.data import DataLoader

        for name in options:
            if name in _OURS:
                raise TypeError(
                    f"ElasticDataLoader({name}=…): the loader sets it itself; the batch size is "
                    "the one given to attach()"
                )
        if session.knobs.batch_size is None:
            raise ValueError("ElasticDataLoader needs a batch size: attach(batch_size=…)")
        if not hasattr(dataset, "__len__"):
            raise TypeError(
                f"ElasticDataLoader needs a dataset with a length, got {type(dataset).__name__}"
            )
        if len(dataset) < distributed.world_size() * micro_batches:
            raise ValueError(f"{len(dataset)} samples are too few for each rank to get one")
        self.dataset, self.drop_last = dataset, drop_last
        self.last_batch = 0
        self._session = session
        self._place = _Place(session.knobs, len(dataset), shuffle, seed, drop_last, micro_batches)
        options.setdefault("persistent_workers", options.get("num_workers", 0) > 0)
        options.setdefault("generator", torch.Generator().manual_seed(seed))
        self._loader = DataLoader(dataset, batch_sampler=self._place, **options)
        session.describe(
            dataset_size=len(dataset),
            drop_last=drop_last,
            total_samples=None if epochs is None else round(epochs * len(dataset)),
        )

    @property
    def epoch(self) -> int:
        """Epochs that were read to their end."""
        return self._place.epoch

    @property
    def dataset_size(self) -> int:
        """Samples of an epoch."""
        return self._place.size

    def __len__(self) -> int:
        """Batches (each of their parts) that are left of the epoch at the present batch size."""
        return self._place.batches_left() * self._place.micro

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of the epoch.

        Raises:
            ValueError: ``drop_last`` leaves nothing of the dataset.
        """
        place = self._place
        place.shuffle()
        if place.position == 0 and len(self) == 0:
            raise ValueError(
                f"drop_last=True leaves nothing of {place.size} samples at a batch size of "
                f"{place.asked()}"
            )
        while len(self):
            asked = place.asked()
            for index, part in enumerate(self._read(), 1):
                if (index - 1) % place.micro == 0:
                    self.last_batch = place.next_size(place.position, asked)
                    place.position += self.last_batch
                yield part
                if index % place.micro == 0 and place.asked() != asked:
                    break
        self.end_epoch()

    def _read(self) -> Iterator[Any]:
        """The batches as torch reads them; what waits for them is told to the session.

        While a GPU still computes, nothing waits: what is read then costs no time.
        """
        import torch

        asked_at = time.monotonic()
        for batch in self._loader:
            waits = not torch.cuda.is_initialized() or torch.cuda.current_stream().query()
            self._session.waited(time.monotonic() - asked_at if waits else 0.0)
            yield batch
            asked_at = time.monotonic()

    def end_epoch(self) -> None:
        """Begin the next epoch with the next loop, whatever is left of this one."""
        self._place.epoch += 1
        self._place.position = 0

    def state_dict(self) -> dict[str, int]:
        """The place in the data, to be saved with the model; for the whole job, not one rank."""
        return {
            "epoch": self._place.epoch,
            "position": self._place.position,
            "seed": self._place.seed,
            "dataset_size": self._place.size,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at a place that ``state_dict`` gave, in the order of that training.

        Raises:
            ValueError: It is a place in a dataset of another size.
        """
        place = self._place
        if state["dataset_size"] != place.size:
            raise ValueError(
                f"the checkpoint is of a dataset of {state['dataset_size']} samples, this one has "
                f"{place.size}: begin anew, or give the dataset of then"
            )
        place.epoch, place.position, place.seed = state["epoch"], state["position"], state["seed"]


class _Place:
    """Where a job is in its data and what follows from there: the batch sampler for torch.

    It knows nothing of the loader: workers would outlive a loader that only a garbage collector
    can find.

    Attributes:
        epoch: Epochs that were read to their end.
        position: Samples of this epoch that were handed out, over all ranks.
        size: Samples of an epoch.
        seed: Of the orders of all epochs.
        micro: Parts of each batch of a rank.
    """

    def __init__(
        self, knobs: Knobs, size: int, shuffle: bool, seed: int, drop_last: bool, micro: int
    ) -> None:
        self.epoch = self.position = 0
        self.size, self.seed, self.micro = size, seed, micro
        self._knobs, self._shuffle, self._drop_last = knobs, shuffle, drop_last
        self._order: Any = None  # a tensor of indices

    def shuffle(self) -> None:
        """Put the samples into the order of this epoch."""
        import torch

        if self._shuffle:
            generator = torch.Generator().manual_seed((self.seed * 100_003 + self.epoch) % 2**63)
            self._order = torch.randperm(self.size, generator=generator)
        else:
            self._order = torch.arange(self.size)

    def asked(self) -> int:
        """Wanted samples of a batch over all ranks."""
        return max(self._knobs.batch_size or 1, self._parts())

    def next_size(self, position: int, asked: int) -> int:
        """Samples of the batch at ``position``, over all ranks; 0 at the end of the epoch."""
        left = self.size - position
        if left < asked:
            # What a job of fewer ranks left over may be too little for each rank of this one.
            return 0 if self._drop_last or left < self._parts() else left
        return left if not self._drop_last and left - asked < self._least(asked) else asked

    def batches_left(self) -> int:
        """How many batches follow if ``asked`` stays what it is."""
        asked = self.asked()
        full, rest = divmod(self.size - self.position, asked)
        if full and rest < self._least(asked):
            return full
        return full + (self.next_size(self.size - rest, asked) > 0)

    def _least(self, asked: int) -> int:
        """Samples below which a last batch is added to the one before."""
        parts = self._parts()
        return 2 * parts if asked >= 2 * parts else parts

    def _parts(self) -> int:
        """In how many parts a batch is split over all ranks."""
        return distributed.world_size() * self.micro

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's samples of each batch that follows, whatever happens to the knob."""
        position, asked = self.position, self.asked()
        rank, ranks = distributed.rank(), distributed.world_size()
        while size := self.next_size(position, asked):
            batch = self._order[position : position + size]
            for part in range(self.micro):
                yield batch[rank + part * ranks :: self._parts()].tolist()
            position += size
