"""Read task.yaml with SkyPilot's own parser and print what it found; nothing is launched.

It runs where SkyPilot is installed (``pip install skypilot``), without an account of any cloud and
without a network: whether a cloud has such a machine is not looked up.
"""

from __future__ import annotations

import os
from pathlib import Path

TASK = Path(__file__).resolve().parent / "task.yaml"
ROOT = TASK.parents[2]


def main() -> None:
    """Parse and validate the task from the repository's root, where ``workdir`` is looked up."""
    import sky

    os.chdir(ROOT)
    task = sky.Task.from_yaml(str(TASK))
    task.validate_name()
    task.validate_run()
    task.expand_and_validate_workdir()
    task.expand_and_validate_file_mounts()
    where = os.path.relpath(task.workdir, ROOT)
    print(f"skypilot {sky.__version__}")
    print(f"name: {task.name}, nodes: {task.num_nodes}, workdir: {where}")
    for resources in task.resources:
        print(f"resources: {resources.accelerators}, disk {resources.disk_size} GB, "
              f"spot {resources.use_spot}, ports {resources.ports}")  # fmt: skip
    print(f"envs: {task.envs}")
    print(f"secrets: {', '.join(task.secrets)}")
    print(f"file mounts: {task.file_mounts}, buckets: {task.storage_mounts}")
    print(f"setup: {task.setup}")
    print(f"run: {task.run}")


if __name__ == "__main__":
    main()
