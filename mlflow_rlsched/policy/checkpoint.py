"""A policy version: one file that is complete or not there, and is checked before it is used.

The file is in the safetensors format; what is no array stands as JSON in its header: the version of
the format, the names of the inputs in their order, the model card, and the hash of all of it. It
needs numpy alone to act: the agent never loads Torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialise

from mlflow_rlsched.policy.inputs import CLIP, ENCODED, FACTORS, HIDDEN, INPUTS, TINY, Array

FORMAT = 2
HEADER = "rlsched"

LAYERS = (0, 2, 4)
"""Numbers of a network's linear layers in the names of its arrays."""

CRITICS = (0, 1)
"""Numbers of the critics that the shipped settings train, in the same names."""

HEADS = ("gpus", "batch_size", "learning_rate")
"""Knobs that an actor can set."""

_GOLDEN = 16
_TOLERANCE = 1e-3
_NORMALISATION = tuple(f"normaliser.{name}" for name in ("mean", "var", "low", "high"))


class PolicyFileError(ValueError):
    """A file that holds no policy that can be used, and why, in a sentence."""


def actor_outputs(arrays: Mapping[str, Array], inputs: Array) -> Array:
    """What the actor says: (N, 5) logits and (N, 2) factors in [-1, 1], side by side.

    Args:
        arrays: The arrays of a policy version.
        inputs: (N, 31).
    """
    out = _through(arrays, "actor.body", _normalised(arrays, inputs))
    return np.hstack([out[:, :-FACTORS], np.tanh(out[:, -FACTORS:])])


def critic_outputs(arrays: Mapping[str, Array], inputs: Array, actions: Array) -> Array:
    """What an action is worth: the lower estimate of the critics (N,), reward an interval.

    Args:
        arrays: The arrays of a policy version.
        inputs: (N, 31).
        actions: (N, 7) encoded.

    Raises:
        KeyError: The version has no critics: it can act, and no more.
    """
    rows = np.hstack([_normalised(arrays, inputs), actions])
    estimates = [_through(arrays, f"critics.bodies.{which}", rows)[:, 0] for which in CRITICS]
    lowest: Array = np.minimum(*estimates)
    return lowest


def _normalised(arrays: Mapping[str, Array], inputs: Array) -> Array:
    mean, var = arrays["normaliser.mean"], arrays["normaliser.var"]
    found: Array = np.clip((inputs - mean) / np.sqrt(var + TINY), -CLIP, CLIP)
    return found


def _through(arrays: Mapping[str, Array], network: str, out: Array) -> Array:
    for layer in LAYERS:
        if layer:
            out = np.maximum(out, 0)
        weight, bias = (arrays[f"{network}.{layer}.{part}"] for part in ("weight", "bias"))
        out = out @ weight.T + bias
    return out


@dataclass(frozen=True)
class Version:
    """A policy as it was at one time.

    Attributes:
        arrays: Weights and normalisation of the actor, and what a learner goes on from, by name.
        card: Where it comes from: data, seeds, figures, limits. JSON values.
        optional: Fields of the state that its training had to do without now and then.
        heads: Knobs that the actor sets, of ``HEADS``; the rules set the others.
    """

    arrays: Mapping[str, Array]
    card: Mapping[str, Any] = field(default_factory=dict)
    optional: Sequence[str] = ()
    heads: Sequence[str] = HEADS

    @cached_property
    def name(self) -> str:
        """The first 12 digits of the hash of its content."""
        return _digest(self.arrays, self._header())[:12]

    def save(self, path: Path) -> None:
        """Write the version to ``path``; the file there is the old one or this one, never a part.

        Raises:
            OSError: It could not be written.
            PolicyFileError: It could not be read again: its numbers are not finite, or its
                normalisation has seen no inputs.
        """
        header = self._header()
        # What a fixed set of inputs leads to, so that who loads it can tell that it acts alike.
        golden = np.random.default_rng(0).uniform(-1, 1, (_GOLDEN, len(INPUTS)))
        arrays = dict(self.arrays) | {
            "golden.inputs": golden.astype(np.float32),
            "golden.outputs": actor_outputs(self.arrays, golden).astype(np.float32),
        }
        _check(path, header, arrays)
        header["digest"] = _digest(arrays, header)
        data = serialise(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()},
            {HEADER: json.dumps(header)},
        )
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, path: Path) -> Version:
        """The version in ``path``, checked: hash, inputs, shapes, numbers and golden outputs.

        Raises:
            PolicyFileError: There is none that can be used.
        """
        try:
            with safe_open(path, "np") as file:
                told = (file.metadata() or {}).get(HEADER)
                names = file.keys()
                arrays = {name: file.get_tensor(name) for name in names}
        except OSError as error:
            raise PolicyFileError(f"{path} cannot be read as a policy: {error}") from error
        except (SafetensorError, TypeError) as error:  # a type that numpy does not know
            raise PolicyFileError(
                f"{path} cannot be read as a policy: {error}; it may be cut short"
            ) from error
        header = _parsed(path, told)
        digest = header.pop("digest", None)
        if digest != _digest(arrays, header):
            raise PolicyFileError(
                f"{path} is damaged: its content does not have the hash that it was written with;"
                " take another copy"
            )
        _check(path, header, arrays)
        golden = arrays.pop("golden.inputs"), arrays.pop("golden.outputs")
        off = np.abs(actor_outputs(arrays, golden[0]) - golden[1]).max()
        if not off <= _TOLERANCE:
            raise PolicyFileError(
                f"{path} does not act as it did when it was written: its outputs are off by"
                f" {off:.2g}; train it anew with this version"
            )
        optional, heads = (tuple(header[name]) for name in ("optional", "heads"))
        return cls(arrays, header["card"], optional, heads)

    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "policy": "ddpg",
            "inputs": list(INPUTS),
            "optional": sorted(self.optional),
            "heads": sorted(self.heads),
            "card": dict(self.card),
        }


def _digest(arrays: Mapping[str, Array], header: Mapping[str, Any]) -> str:
    found = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _parsed(path: Path, told: str | None) -> dict[str, Any]:
    try:
        header = json.loads(told or "")
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("policy") != "ddpg":
        raise PolicyFileError(
            f"{path} holds no policy of rlsched; write ddpg, or the path of a file that rlsched"
            " wrote"
        )
    if header.get("format") != FORMAT:
        raise PolicyFileError(
            f"{path} has format {header.get('format')!r}, this version reads {FORMAT}; train it"
            " anew, or use the version of rlsched that wrote it"
        )
    if not isinstance(header.get("card"), dict) or not isinstance(header.get("optional"), list):
        raise PolicyFileError(f"{path} has no model card or does not say what it was trained on")
    heads = header.get("heads")
    if not isinstance(heads, list) or not set(heads) <= set(HEADS):
        raise PolicyFileError(f"{path} does not say which of {', '.join(HEADS)} it sets")
    return header


def _check(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    told = header.get("inputs")
    if told != list(INPUTS):
        raise PolicyFileError(
            f"{path} was trained on other inputs ({_difference(told)}); train it anew"
        )
    widths = [len(INPUTS), *HIDDEN, ENCODED]
    shapes: dict[str, tuple[int, ...]] = {name: (len(INPUTS),) for name in _NORMALISATION}
    shapes |= {"golden.inputs": (_GOLDEN, len(INPUTS)), "golden.outputs": (_GOLDEN, ENCODED)}
    for layer, before, after in zip(LAYERS, widths, widths[1:], strict=False):
        shapes[f"actor.body.{layer}.weight"] = (after, before)
        shapes[f"actor.body.{layer}.bias"] = (after,)
    for name, shape in shapes.items():
        if name not in arrays or arrays[name].shape != shape:
            found = arrays[name].shape if name in arrays else "nothing"
            raise PolicyFileError(f"{path} has {found} for {name}, must be {shape}")
        if not np.isfinite(arrays[name]).all():
            raise PolicyFileError(f"{path} has numbers in {name} that are not finite")


def _difference(told: Any) -> str:
    names = [str(name) for name in told] if isinstance(told, list) else []
    missing = [name for name in INPUTS if name not in names]
    unknown = [name for name in names if name not in INPUTS]
    if not missing and not unknown:
        return "in another order"
    return ", ".join(
        [*(f"{name} is missing" for name in missing), *(f"{n} is unknown" for n in unknown)]
    )
