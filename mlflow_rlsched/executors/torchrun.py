"""``torchrun`` that ends with 75 when its ranks stopped on request, to be resumed later.

The main process of attempts with ``launcher: torchrun``; it takes torchrun's own arguments.
"""

from __future__ import annotations

import sys

from mlflow_rlsched.protocol import EXIT_RESUME


def main(arguments: list[str]) -> int:
    """Run torchrun; returns the exit code."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.main(arguments)
    except ChildFailedError as error:
        # The other ranks are ended as soon as the first one has left.
        if any(failure.exitcode == EXIT_RESUME for failure in error.failures.values()):
            return EXIT_RESUME
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
