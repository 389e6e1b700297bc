"""The machine that measured and what was installed on it; nothing that names its owner: no host, no user, no paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path

import psutil

PACKAGES = ("pitstop", "locust", "httpx", "msgspec", "numpy", "matplotlib", "jinja2", "junitparser", "nvidia-ml-py")


def machine() -> dict[str, str]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    there = os.cpu_count() or 1
    return {
        "CPU": _cpu(),
        "cores": f"{usable} usable" + (f" of {there}" if there > usable else ""),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPU": _gpus(),
        "system": _system(),
        "kernel": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(model[1].split()) if model else platform.processor() or platform.machine()


def _gpus() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no driver, no library: the many ways to have no GPU
        return "none"
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        names = [
            f"{pynvml.nvmlDeviceGetName(handle)}, {pynvml.nvmlDeviceGetMemoryInfo(handle).total / 2**30:.0f} GiB" for handle in handles
        ]
        driver = pynvml.nvmlSystemGetDriverVersion()
        return f"{'; '.join(names)}; driver {driver}" if names else "none"
    except pynvml.NVMLError as error:
        return f"not known: {error}"
    finally:
        pynvml.nvmlShutdown()


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.platform(terse=True)
