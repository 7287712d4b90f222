"""A library that stands for absent NVIDIA hardware under the real bindings (see nvml_stub.c)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
GIB = 1 << 30

_HEALTHY: dict[str, Any] = {
    "name": "NVIDIA Stub",
    "memory_total": 80 * GIB,
    "memory_used": 0,
    "memory_reserved": GIB // 2,
    "utilization": 0,
    "power": 60,
    "power_limit": 400,
    "energy": 1000,
    "sm_clock": 1410,
    "memory_clock": 1593,
    "temperature": 35,
    "throttle": 0x1,
    "pids": [],
}
_HEALTHY_SLICE: dict[str, Any] = {
    "name": "NVIDIA Stub MIG 3g.40gb",
    "memory_total": 40 * GIB,
    "memory_used": 0,
    "pids": [],
}


def compile(folder: Path, *, old_driver: bool = False) -> Path:
    """Build the library below ``folder``, unless it is there, and return the folder it is in.

    With ``old_driver`` the versioned symbols of newer drivers are missing.
    """
    folder = folder / ("old_driver" if old_driver else "driver")
    library = folder / LIBRARY
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{LIBRARY}.{os.getpid()}"
        source = Path(__file__).with_name("nvml_stub.c")
        options = ["-DOLD_DRIVER"] if old_driver else []
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wall", *options, "-o", temporary, source], check=True
        )
        temporary.replace(library)
    return folder


def uuid(index: int) -> str:
    """The UUID that ``write`` gives to a GPU without one."""
    return f"GPU-{index:08x}-0000-4000-8000-000000000000"


def slice_uuid(index: int, number: int) -> str:
    """The UUID that ``write`` gives to a MIG slice without one."""
    return f"MIG-{index:08x}-{number:04x}-4000-8000-000000000000"


def write(path: Path, devices: Sequence[Mapping[str, Any]], init: int = 0) -> None:
    """Describe the devices: a healthy, idle GPU each, save for what is given.

    Args:
        path: State file, replaced atomically: a program that runs sees the change at once.
        devices: By NVML index. Keys: ``uuid``, ``name``, ``memory_total``, ``memory_used``,
            ``memory_reserved`` (bytes), ``utilization`` (percent), ``power``, ``power_limit``
            (W), ``energy`` (J), ``sm_clock``, ``memory_clock`` (MHz), ``temperature`` (°C),
            ``throttle`` (bits), ``pids`` (or pairs of pid and bytes), ``lost``, ``numa``,
            ``switch``, ``nvlink`` (names of what GPUs may share), and ``slices`` (such mappings; a
            GPU that has the key is in MIG mode). A value may be
            ``"unsupported"`` or ``"error N"`` with an NVML error number.
        init: What initialising NVML returns (0 is success).
    """
    lines = [f"init={init}"]
    for index, device in enumerate(devices):
        values = {"uuid": uuid(index), **_HEALTHY, **device}
        slices = values.pop("slices", None)
        lines += ["[gpu]", *_lines({**values, "mig": int(slices is not None)})]
        for number, piece in enumerate(slices or ()):
            values = {"uuid": slice_uuid(index, number), **_HEALTHY_SLICE, **piece}
            lines += ["[slice]", *_lines(values)]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text("\n".join(lines) + "\n")
    temporary.replace(path)


def _lines(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_text(value)}" for key, value in values.items()]


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        pairs = (item if isinstance(item, tuple) else (item, 0) for item in value)
        return ",".join(f"{pid}:{size}" for pid, size in pairs)
    return str(int(value)) if isinstance(value, bool) else str(value)


def environment(folder: Path, state_file: Path) -> dict[str, str]:
    """Variables with which a new process finds the library in ``folder`` and its devices."""
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(paths), "RLSCHED_STUB_NVML": str(state_file)}
