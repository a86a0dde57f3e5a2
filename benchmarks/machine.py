"""What a recorded number must say of its run: machine, versions, date; and where it is kept."""

from __future__ import annotations

import json
import os
import platform
import re
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

RECORDED = Path(__file__).resolve().parent / "recorded"


def describe_run() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    versions = {name: "not installed" for name in ("torch", "triton")}
    versions |= {d.name: d.version for d in metadata.distributions() if d.name in versions}
    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": "cpu",
        "cpu": found[1] if found else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "versions": {"python": platform.python_version(), **versions},
    }


def print_run(run: dict[str, Any]) -> None:
    print(", ".join(f"{k} {v}" for k, v in (run | run["versions"]).items() if k != "versions"))


def record(file: Path, content: dict[str, Any]) -> None:
    """Write JSON; a bare name goes to the folder of recorded results."""
    file = RECORDED / file if file.parent == Path(".") else file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=1) + "\n")
    print(f"recorded in {file}")
