"""The check of a real GPU, on a host without one: what it finds, and that it says so."""

from __future__ import annotations

import re

import pytest

from benchmarks import gpu_check
from benchmarks.host import Host
from tests.gpu.conftest import GpuHost
from tests.stubs import nvml


def test_findings_are_of_the_leased_device(gpus: GpuHost) -> None:
    """CUDA is absent here, so the training ran elsewhere: that has to be found."""
    gpus.has({"utilization": 37}, {})
    place = Host(gpus.world.root, gpus.world.env)
    findings = gpu_check.check(place, gpu_check.gpus(), epochs=8)
    assert [finding.good for finding in findings[:4]] == [True, False, True, True]
    leased, trained = (finding.text for finding in findings[:2])
    assert leased == f"leased NVIDIA Stub, {nvml.uuid(0)}, NVML index 0"
    assert trained == f"CUDA_VISIBLE_DEVICES={nvml.uuid(0)}: trained on the CPU"
    use = next(f.text for f in findings if "utilization" in f.text)
    assert re.fullmatch(r"system/gpu_0_utilization_percentage: at most 37 in \d+ samples", use)


def test_a_host_without_a_gpu_is_nothing_to_check(
    gpus: GpuHost, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus.has()
    assert gpu_check.main() == 0
    said = capsys.readouterr().out
    assert said == (
        "Nothing to check, because this host has no GPU: NVML lists no GPU that could be leased.\n"
    )


def test_a_pytorch_that_cannot_use_the_gpu_is_said(
    gpus: GpuHost, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_check.main() == 1
    assert "cannot use it: install its CUDA build." in capsys.readouterr().out
