"""What a scheduler may turn while a training runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlflow_rlsched.protocol import Directive


@dataclass
class Knobs:
    """The values in force. The session changes them in place; a training only reads them.

    Attributes:
        batch_size: Global batch size in samples; None when ``attach`` was given none.
        learning_rate: Base learning rate times ``lr_scale``; None when ``attach`` was given none.
        gpus: Devices of this attempt: 0 on a CPU and outside a scheduled run.
        lr_scale: Factor on what the user's own schedule says.
    """

    batch_size: int | None
    learning_rate: float | None
    gpus: int = 0
    lr_scale: float = 1.0

    def follow(self, directive: Directive, base: Knobs) -> bool:
        """Take the values of a directive, computed from the ``base`` ones; whether any changed."""
        before = replace(self)
        if base.batch_size is not None:
            self.batch_size = directive.batch_size or base.batch_size
        if base.learning_rate is not None:
            self.lr_scale = directive.lr_scale
            self.learning_rate = base.learning_rate * directive.lr_scale
        return self != before
