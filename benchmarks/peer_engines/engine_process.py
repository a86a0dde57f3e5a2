"""The other end of ``loop.py``: an engine's process, as the benchmark sees it."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent


class Absent(Exception):
    """An engine does not start, or does not do what it is asked."""


class Engine:
    """A process that generates when it is asked to.

    Args:
        python: of the engine's environment.
        script: a file of this folder.
        settings: ``loop.Settings`` as a mapping.

    Raises:
        Absent: it ends before it is ready; the message has its last line.
    """

    def __init__(self, python: str, script: str, settings: dict[str, Any]) -> None:
        self.script = script
        self.log = tempfile.TemporaryFile("w+")
        threads = {"OMP_NUM_THREADS": str(settings["threads"])}
        self.process = subprocess.Popen(
            [python, str(SCRIPTS / script), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | threads,
        )
        self.versions = self._answer()["versions"]

    def generate(self, token_ids: list[int], max_tokens: int) -> dict[str, Any]:
        """Return the new ids and the seconds that they took.

        Raises:
            Absent: it ends, or returns another number of ids.
        """
        asked = {"token_ids": token_ids, "max_tokens": max_tokens}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        answer = self._answer()
        if len(answer["token_ids"]) != max_tokens:
            count = len(answer["token_ids"])
            raise Absent(f"{self.script}: {count} tokens, expected {max_tokens}")
        return answer

    def cpu_seconds(self) -> float:
        """Return what all its threads have used, as Linux tells."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            said = [text for text in self.log.read().splitlines() if text.strip()]
            raise Absent(f"{self.script}: {said[-1] if said else 'it ended without a word'}")
        return json.loads(line)
