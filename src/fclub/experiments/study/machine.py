"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("numpy", "scipy", "numba", "joblib")


def describe_machine() -> dict[str, str | int]:
    """Processor, cores, system and the versions that matter for speed."""
    described: dict[str, str | int] = {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
    return described | {name: version(name) for name in LIBRARIES}


def _processor() -> str:
    """Linux keeps the model in a file; elsewhere the platform module knows it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
