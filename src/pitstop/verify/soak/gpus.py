"""NVIDIA GPUs of this machine through NVML: memory in use, memory errors, Xid events, link errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pitstop.errors import TargetError, how_to_install

LINKS = 18  # the most that a GPU has so far
GIVES = ("gpu_memory", "gpu_ecc", "gpu_ecc_corrected", "gpu_xid", "gpu_links")


class GPUs:
    """All devices together. A counter that not all of them have is not followed."""

    def __init__(self, nvml: Any) -> None:
        """nvml: the module pynvml, initialised. Raises TargetError when a device cannot be opened."""
        self._nvml = nvml
        self._xids = 0
        self._missing: dict[str, str] = {}
        try:
            self._devices = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            raise TargetError(f"NVML: {error}") from None
        self.count = len(self._devices)
        self._readers: dict[str, Callable[[Any], int]] = {
            "gpu_memory": lambda device: nvml.nvmlDeviceGetMemoryInfo(device).used,
            "gpu_ecc": lambda device: self._ecc(device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            "gpu_ecc_corrected": lambda device: self._ecc(device, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "gpu_links": self._link_errors,
        }
        for name, reader in list(self._readers.items()):
            try:
                for device in self._devices:
                    reader(device)
            except nvml.NVMLError_NotSupported:
                self._readers.pop(name)
                self._missing[name] = "these GPUs do not have it"
            except nvml.NVMLError:
                pass  # it has it: a counter that cannot be read fails when it is read
        self._listen()

    def __str__(self) -> str:
        return f"NVML, {self.count} GPUs"

    def lacks(self, counter: str) -> str:
        return self._missing.get(counter, "")

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def read(self) -> dict[str, float]:
        """gpu_memory in bytes, the others counted. Raises TargetError when one that is there cannot be read."""
        try:
            values = {name: float(sum(map(reader, self._devices))) for name, reader in self._readers.items()}
            return values if "gpu_xid" in self._missing else values | {"gpu_xid": float(self._count_xids())}
        except self._nvml.NVMLError as error:
            raise TargetError(f"NVML: {error}") from None

    def _ecc(self, device: Any, kind: int) -> int:
        return self._nvml.nvmlDeviceGetTotalEccErrors(device, kind, self._nvml.NVML_VOLATILE_ECC)

    def _link_errors(self, device: Any) -> int:
        """Replays, recoveries and checksum errors of all active links."""
        nvml, total, active = self._nvml, 0, False
        kinds = (nvml.NVML_NVLINK_ERROR_DL_REPLAY, nvml.NVML_NVLINK_ERROR_DL_RECOVERY, nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)
        for link in range(LINKS):
            try:
                if nvml.nvmlDeviceGetNvLinkState(device, link) != nvml.NVML_FEATURE_ENABLED:
                    continue
            except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
                break  # no link of this number
            active = True
            total += sum(nvml.nvmlDeviceGetNvLinkErrorCounter(device, link, kind) for kind in kinds)
        if not active:
            raise nvml.NVMLError_NotSupported
        return total

    def _listen(self) -> None:
        nvml = self._nvml
        try:
            self._events = nvml.nvmlEventSetCreate()
            for device in self._devices:
                nvml.nvmlDeviceRegisterEvents(device, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError_NotSupported:
            self._missing["gpu_xid"] = "these GPUs report no Xid events"

    def _count_xids(self) -> int:
        while True:
            try:
                self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError_Timeout:
                return self._xids
            self._xids += 1


def find() -> GPUs | str:
    """This machine's GPUs, or why there are none to follow."""
    try:
        import pynvml
    except ImportError:
        return f"nvidia-ml-py is not installed: {how_to_install('verify')}"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"no NVIDIA driver answers ({error})"
    gpus = GPUs(pynvml)
    return gpus if gpus.count else "there is no GPU"
