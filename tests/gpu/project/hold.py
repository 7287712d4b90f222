"""Says which devices it sees, then holds them until it is let go (standard library only)."""

import json
import os
import sys
import time
from pathlib import Path

NAMES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "RLSCHED_NUM_GPUS",
    "RLSCHED_MEMORY_CAP_BYTES",
    "MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING",
)


def main():
    folder, run_id = Path(sys.argv[1]), os.environ["MLFLOW_RUN_ID"]
    seen = {name: os.environ.get(name) for name in NAMES} | {"pid": os.getpid()}
    path = folder / f"{run_id}-{os.environ['RLSCHED_ATTEMPT']}.json"
    path.with_suffix(".tmp").write_text(json.dumps(seen))
    path.with_suffix(".tmp").replace(path)
    deadline = time.monotonic() + 240
    while not (folder / f"{run_id}.go").exists():
        if time.monotonic() > deadline:
            sys.exit("nobody let it go")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
