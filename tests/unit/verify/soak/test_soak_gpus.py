"""NVML's answers as a module of NVML's names gives them: no device is needed to see what is followed and what fails."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest

from pitstop.errors import TargetError
from pitstop.verify.soak.gpus import GIVES, GPUs


class NVML:
    """Two devices with four links each. `fail`: names of functions and what they raise; numbers grow with `time`."""

    def __init__(self, **fail: Exception) -> None:
        self.time = 0
        self.xids = 0
        self.fail = fail

    def __getattr__(self, name: str):
        return getattr(pynvml, name)

    def _call(self, name: str, answer: object) -> object:
        if name in self.fail:
            raise self.fail[name]
        return answer

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return self._call("handle", index)

    def nvmlDeviceGetMemoryInfo(self, device):
        return self._call("memory", SimpleNamespace(used=1000 + self.time))

    def nvmlDeviceGetTotalEccErrors(self, device, kind, counter):
        assert counter == pynvml.NVML_VOLATILE_ECC
        return self._call("ecc", self.time if kind == pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED else 10 * self.time)

    def nvmlDeviceGetNvLinkState(self, device, link):
        if link >= 4:
            raise pynvml.NVMLError_InvalidArgument
        return self._call("state", pynvml.NVML_FEATURE_ENABLED if link < 2 else pynvml.NVML_FEATURE_DISABLED)

    def nvmlDeviceGetNvLinkErrorCounter(self, device, link, kind):
        assert link < 2
        return self._call("link", self.time)

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, device, kind, events):
        self._call("register", None)

    def nvmlEventSetWait_v2(self, events, timeout):
        assert (events, timeout) == ("events", 0)
        self._call("wait", None)
        if not self.xids:
            raise pynvml.NVMLError_Timeout
        self.xids -= 1


def test_all_devices_are_summed():
    nvml = NVML()
    gpus = GPUs(nvml)
    assert [gpus.lacks(name) for name in GIVES] == [""] * 5
    assert gpus.read() == {"gpu_memory": 2000, "gpu_ecc": 0, "gpu_ecc_corrected": 0, "gpu_xid": 0, "gpu_links": 0}
    nvml.time, nvml.xids = 3, 2
    assert gpus.read() == {"gpu_memory": 2006, "gpu_ecc": 6, "gpu_ecc_corrected": 60, "gpu_xid": 2, "gpu_links": 2 * 2 * 3 * 3}
    nvml.xids = 1
    assert gpus.read()["gpu_xid"] == 3


@pytest.mark.parametrize(
    ("function", "lacking"),
    [("ecc", ["gpu_ecc", "gpu_ecc_corrected"]), ("state", ["gpu_links"]), ("link", ["gpu_links"]), ("register", ["gpu_xid"])],
)
def test_what_a_device_does_not_have_is_not_followed(function: str, lacking: list[str]):
    gpus = GPUs(NVML(**{function: pynvml.NVMLError_NotSupported()}))
    assert [name for name in GIVES if gpus.lacks(name)] == lacking
    assert set(gpus.read()) == set(GIVES) - set(lacking)


@pytest.mark.parametrize("function", ["memory", "ecc", "link", "wait"])
def test_what_a_device_has_and_cannot_be_read_is_an_error(function: str):
    nvml = NVML(**{function: pynvml.NVMLError_Unknown()})
    gpus = GPUs(nvml)
    assert [gpus.lacks(name) for name in GIVES] == [""] * 5
    with pytest.raises(TargetError, match="NVML: Unknown Error"):
        gpus.read()


def test_a_lost_device_is_an_error():
    with pytest.raises(TargetError, match="NVML"):
        GPUs(NVML(handle=pynvml.NVMLError_GpuIsLost()))
