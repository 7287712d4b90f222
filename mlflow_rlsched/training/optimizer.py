"""What an optimizer is, and the learning rate underneath the user's own schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ADAM_LIKE = {"rmsprop", "adagrad", "adadelta", "adafactor", "lamb", "lion"}


def family(optimizer: Any) -> str:
    """``sgd``, ``adam`` (all whose step does not grow with the gradient), else the class's name.

    That is what decides how the learning rate follows the batch size.
    """
    names = [base.__name__.lower() for base in type(optimizer).__mro__]
    if any("adam" in name or name in _ADAM_LIKE for name in names):
        return "adam"
    return "sgd" if "sgd" in names else names[0]


def scale_steps(optimizer: Any, scale: Callable[[], float]) -> None:
    """Make every ``optimizer.step()`` use each group's learning rate times ``scale()``.

    The product is there only while the step runs. Schedulers, checkpoints and the user see the
    values that they wrote, so one that multiplies what it finds never multiplies ours too.

    Raises:
        TypeError: The optimizer has no step hooks.
    """
    originals: list[tuple[dict[str, Any], Any]] = []

    def restore(*_: Any) -> None:
        for group, rate in originals:
            _set_rate(group, rate)
        originals.clear()

    def multiply(stepping: Any, *_: Any) -> None:
        restore()  # when the step before raised an error, its hook for afterwards did not run
        factor = scale()
        if factor == 1.0:
            return
        for group in stepping.param_groups:
            rate = group["lr"]
            originals.append((group, rate.clone() if hasattr(rate, "clone") else rate))
            _set_rate(group, rate * factor)

    try:
        optimizer.register_step_pre_hook(multiply)
        optimizer.register_step_post_hook(restore)
    except AttributeError:
        raise TypeError(
            f"session.apply() needs a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "if it wraps an optimizer, pass the inner one"
        ) from None


def _set_rate(group: dict[str, Any], rate: Any) -> None:
    if hasattr(group["lr"], "copy_"):  # a tensor, maybe one that a CUDA graph has captured
        group["lr"].copy_(rate)
    else:
        group["lr"] = rate
