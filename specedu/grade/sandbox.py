"""A rule that runs elsewhere: a submission in a process without rights, asked over pipes.

The child is trusted with nothing. It gets copies of the inputs and a number for each question, and
sends back two tensors. What is expected is worked out here, after the answer came.

What the process may not do is the system's word, not Python's: no network, no file but the standard
library's and torch's, no new process, no signal to others, limited memory and time. Linux as root
takes all of it away; elsewhere ``RemoteRule.missing`` says what could not be.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import specedu.kernels

from .broken import KERNELS, absolute
from .child import ALIGNED, LENGTHS, NOBODY, frame
from .exercises import Exercise

SENTINEL = -(2**31) + 7  # no id and no count: an entry that was not written shows
SOURCE_BYTES = 1 << 20  # of a submission; the longest file of the kernels has 20 thousand
OUTPUT_BYTES = 1 << 16  # what is kept of what a submission prints
HEADER_BYTES = 1 << 16


@dataclass(frozen=True)
class Limits:
    """What one submission may use.

    Attributes:
        seconds: for one question, by the clock.
        total_seconds: for all of its questions, by the clock.
        cpu_seconds: of its process.
        memory: bytes above what torch has taken.
    """

    seconds: float = 20.0  # a kernel's longest question takes Triton's interpreter 2
    total_seconds: float = 180.0
    cpu_seconds: int = 120
    memory: int = 1 << 30


DEFAULT_LIMITS = Limits()


class Raised(Exception):
    """The submission raised, or returned something of another form; it may be asked again."""


class Ended(Exception):
    """The submission's process is gone, and no question will be answered any more."""


# --- what a submission may import -----------------------------------------------------------------


@functools.cache
def helpers(module: str) -> frozenset[str]:
    """Return the modules of the kernels that one of them needs, itself left out.

    Example:
        >>> sorted(helpers("ratio.py"))
        ['backend', 'draw']
    """
    found: set[str] = set()
    ahead = [module.removesuffix(".py")]
    while ahead:
        name = ahead.pop()
        text = absolute((KERNELS / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.ImportFrom) and node.module):
                continue
            if node.module == "specedu.kernels":
                new = {alias.name for alias in node.names}
            elif node.module.startswith("specedu.kernels."):
                new = {node.module.rpartition(".")[2]}
            else:
                continue
            ahead += new - found
            found |= new
    return frozenset(found - {module.removesuffix(".py")})


def lay_out(folder: Path, exercise: Exercise, source: bytes) -> dict[str, Any]:
    """Write a package of the kernels without the answer, and the submission in its place.

    Returns the part of the child's order that says where things are.
    """
    public = inspect.getmodule(getattr(specedu.kernels, exercise.function)).__name__
    public = public.rpartition(".")[2]  # the module with the function that is asked
    own = exercise.source.removesuffix(".py")
    whole = f"def {exercise.function}(".encode() in source
    needed = helpers(exercise.source) if whole else helpers(f"{public}.py") | {public}
    place = public if whole else own
    package = folder / "specedu" / "kernels"
    package.mkdir(parents=True)
    (folder / "specedu" / "__init__.py").touch()
    opening = "from .contract import Verified\n" if "contract" in needed else ""
    (package / "__init__.py").write_text(opening, encoding="utf-8")
    for name in needed - {place, own}:
        shutil.copyfile(KERNELS / f"{name}.py", package / f"{name}.py")
    (package / f"{place}.py").write_bytes(source)
    return {
        "folder": str(folder),
        "file": str(package / f"{place}.py"),
        "module": public,
        "function": exercise.function,
        "backend": exercise.backend,
        "helpers": sorted(helpers(exercise.source)),
    }


# --- the nursery ----------------------------------------------------------------------------------


class Nursery:
    """A process that has imported torch and nothing of ours, and forks a child a submission.

    It is started anew where it has died. Used by one thread.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the process, unless it lives."""
        if self.process and self.process.poll() is None:
            return
        self.close()
        self.control, theirs = socket.socketpair()
        script = str(Path(__file__).with_name("child.py"))
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-B", script, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "HOME": "/",
                 "OPENBLAS_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
        )  # fmt: skip
        theirs.close()
        self.lines = self.control.makefile("rb")
        if self.lines.readline() != b"ready\n":
            raise RuntimeError("the process for submissions did not start; see its words above")

    def ask(self, order: dict[str, Any], descriptors: list[int] | None = None) -> dict[str, Any]:
        """Send one order and return the reply.

        Raises:
            Ended: the nursery died of it.
        """
        words = json.dumps(order).encode() + b"\n"
        try:
            if descriptors:
                socket.send_fds(self.control, [words], descriptors)
            else:
                self.control.sendall(words)
            return json.loads(self.lines.readline())
        except (OSError, ValueError):
            self.close()
            raise Ended("the process that starts submissions was killed") from None

    def close(self) -> None:
        """End the process and what it started."""
        if self.process:
            self.lines.close()
            self.control.close()  # its end: it ends its children, then itself
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def __enter__(self) -> Nursery:
        """Start it."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()


# --- the rule -------------------------------------------------------------------------------------


class RemoteRule:
    """A submission, asked as if it were a function of this process.

    Attributes:
        ended: why it answers no more; empty while it does. It may say so from the beginning.
        refused: what the scan of its text refuses.
        missing: what this system did not let its process give up.
        written: whether it says that it wrote its inputs: its own word, a public check.
        output: the beginning of what it printed.
        pid: of its process.
    """

    def __init__(
        self,
        nursery: Nursery,
        exercise: Exercise,
        source: bytes,
        limits: Limits = DEFAULT_LIMITS,
        scan: bool = True,
    ) -> None:
        """Start the submission; ``scan=False`` runs a text that the scan refuses, for tests."""
        self.exercise, self.nursery, self.limits = exercise, nursery, limits
        self.signature = inspect.signature(getattr(specedu.kernels, exercise.function))
        self.ended, self.refused, self.missing = "", [], []
        self.written, self.output, self.pid, self.spent = False, b"", 0, 0.0
        self.folder = Path(tempfile.mkdtemp(prefix="specedu-grade-"))
        self.selector = selectors.DefaultSelector()
        self.pipes: list[int] = []
        try:
            self._start(source, scan)
        except Ended as error:
            self.ended = str(error)

    def _start(self, source: bytes, scan: bool) -> None:
        if len(source) > SOURCE_BYTES:
            raise Ended(f"the file has {len(source)} bytes, expected at most {SOURCE_BYTES}")
        order = lay_out(self.folder, self.exercise, source)
        if os.geteuid() == 0:
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)
        order |= {"scan": scan, "cpu_seconds": self.limits.cpu_seconds,
                  "memory": self.limits.memory}  # fmt: skip
        self.nursery.start()
        asked, self.questions = os.pipe()
        self.answers, answered = os.pipe()
        self.printed, printed = os.pipe()
        self.pipes = [self.questions, self.answers, self.printed]
        try:
            self.pid = self.nursery.ask(order, [asked, answered, printed])["pid"]
        finally:
            for pipe in (asked, answered, printed):
                os.close(pipe)
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
        self.selector.register(self.answers, selectors.EVENT_READ)
        self.selector.register(self.printed, selectors.EVENT_READ)
        opening, _ = self._exchange(b"", 0, "importing it")
        if "error" not in opening:
            self.missing, self.refused = opening["missing"], opening["refused"]
            if self.refused and scan:
                self._end("refused before it ran: " + "; ".join(self.refused))
            opening, _ = self._exchange(b"", 0, "importing it")
        if opening.get("error"):
            self._end(f"it cannot be imported: {opening['error']}")

    def __call__(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Ask one question.

        Raises:
            Raised: the submission raised, or its answer has another form.
            Ended: its process is gone.
        """
        if self.ended:
            raise Ended(self.ended)
        bound = self.signature.bind(*arguments, **options).arguments
        batch = len(bound["cu_num_draft_tokens"])
        forms = [["int64", [batch, bound["max_spec_len"] + 1]], ["int32", [batch]]]
        number = secrets.token_hex(8)  # an answer that was written before the question has another
        payload = bytearray()
        header = {
            "number": number,
            "forms": forms,
            "arguments": [_packed(value, payload) for value in arguments],
            "options": {name: _packed(value, payload) for name, value in options.items()},
        }
        results = [torch.full(shape, SENTINEL, dtype=getattr(torch, dtype))
                   for dtype, shape in forms]  # fmt: skip
        sizes = [result.numel() * result.element_size() for result in results]
        reply, body = self._exchange(
            frame(header, bytes(payload)), sum(sizes), "it answered a question"
        )
        if reply.get("number") != number:
            self._end("it sent an answer to a question that was not asked")
        self.written |= bool(reply.get("written"))
        if reply.get("error"):
            raise Raised(self._tidy(str(reply["error"])[:2000]))
        if reply.get("forms") != forms:
            raise Raised(_form_words(reply.get("forms"), forms))
        if len(body) != sum(sizes):
            self._end(f"it sent {len(body)} bytes, expected {sum(sizes)}")
        start = 0
        for result, size in zip(results, sizes, strict=True):
            if size:
                chunk = torch.frombuffer(body, dtype=result.dtype, count=result.numel(),
                                         offset=start)  # fmt: skip
                result.copy_(chunk.view(result.shape))
            start += size
        if any(bool((result == SENTINEL).any()) for result in results):
            raise Raised("part of the answer was not written")
        return results[0], results[1]

    def _exchange(self, words: bytes, most: int, what: str) -> tuple[dict[str, Any], bytearray]:
        """Send a frame, if there is one, and read one; end the submission where it does not come.

        Args:
            words: the frame to send; empty: none.
            most: bytes that the answer's payload may have.
            what: what is waited for, in words.
        """
        begun = time.monotonic()
        limit = min(self.limits.seconds, self.limits.total_seconds - self.spent)
        ahead, got, lengths = memoryview(words), bytearray(), None
        if ahead:
            self.selector.register(self.questions, selectors.EVENT_WRITE)
        try:
            while True:
                left = begun + limit - time.monotonic()
                if left <= 0:
                    self._end(f"stopped after {limit:.0f} seconds, before {what}: is there a loop "
                              "that never ends?")  # fmt: skip
                for key, _ in self.selector.select(left):
                    if key.fd == self.printed:
                        self._keep_output()
                    elif key.fd == self.questions:
                        try:
                            ahead = ahead[os.write(self.questions, ahead) :]
                        except BlockingIOError:
                            continue
                        except BrokenPipeError:
                            ahead = ahead[:0]  # the answers' pipe says the rest
                        if not ahead:
                            self.selector.unregister(self.questions)
                    else:
                        need = LENGTHS.size if lengths is None else LENGTHS.size + sum(lengths)
                        chunk = os.read(self.answers, min(need - len(got), 1 << 20))
                        if not chunk:
                            self._end(f"its process ended before {what}", patience=2.0)
                        got += chunk
                        if lengths is None and len(got) == LENGTHS.size:
                            lengths = LENGTHS.unpack(got)
                            if lengths[0] > HEADER_BYTES or lengths[1] > most:
                                self._end("it sent more than an answer has")
                        if lengths is not None and len(got) == LENGTHS.size + sum(lengths):
                            return self._read(got, lengths[0])
        finally:
            self.spent += time.monotonic() - begun
            if self.questions in self.selector.get_map():
                self.selector.unregister(self.questions)

    def _read(self, got: bytearray, n_header: int) -> tuple[dict[str, Any], bytearray]:
        begin = LENGTHS.size
        try:
            header = json.loads(got[begin : begin + n_header])
        except (ValueError, RecursionError):
            header = None
        if not isinstance(header, dict):
            self._end("it sent something that is no answer")
        return header, got[begin + n_header :]

    def _keep_output(self) -> None:
        chunk = os.read(self.printed, 1 << 16)
        if not chunk:
            self.selector.unregister(self.printed)
        self.output += chunk[: OUTPUT_BYTES - len(self.output)]

    def _end(self, words: str, patience: float = 0.0) -> None:
        """Kill the child and raise ``Ended``; its status is told where it ended by itself."""
        try:
            reply = self.nursery.ask({"end": self.pid, "patience": patience})
        except Ended:
            reply = {}
        status = reply.get("status")
        if patience and status is not None and not reply.get("killed"):
            code = os.waitstatus_to_exitcode(status)
            if code == -signal.SIGXCPU or code == -signal.SIGKILL:
                words += f": {self.limits.cpu_seconds} seconds of CPU or its memory were used up"
            elif code < 0:
                words += f": {signal.Signals(-code).name}"
            else:
                words += f", with status {code}"
        self.ended = self._tidy(words)
        raise Ended(self.ended)

    def _tidy(self, words: str) -> str:
        """Return words without the folder's random name: two runs say the same."""
        return words.replace(str(self.folder), "")

    def close(self) -> None:
        """End the process and remove its folder."""
        if self.pid and not self.ended:
            try:
                self._end("closed")
            except Ended:
                self.ended = ""
        self.selector.close()
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = []
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> RemoteRule:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()


def _packed(value: Any, payload: bytearray) -> dict[str, Any]:
    """Append a tensor's storage to the payload and return what it takes to rebuild it."""
    if not isinstance(value, torch.Tensor):
        return {"value": value}
    payload += bytes(-len(payload) % ALIGNED)
    n = 0
    if value.numel():
        steps = zip(value.shape, value.stride(), strict=True)
        n = 1 + sum((size - 1) * stride for size, stride in steps)
    offset = len(payload)
    if n:
        flat = value.detach().cpu().as_strided((n,), (1,)).contiguous()
        payload += flat.view(torch.uint8).numpy().tobytes()
    return {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "offset": offset,
        "length": n,
    }


def _form_words(found: Any, forms: list[Any]) -> str:
    try:
        pairs = zip(("token_ids", "num_accepted"), found, forms, strict=True)
        return "; ".join(
            f"{name} is {str(has[0])[:20]} {str(has[1])[:60]}, expected {want[0]} {want[1]}"
            for name, has, want in pairs if has != want
        )  # fmt: skip
    except (TypeError, ValueError, IndexError, KeyError):
        return "it returned no (token_ids, num_accepted)"
