"""The process that a submission runs in. Run as a file: it imports nothing of specedu.

``python -I -B child.py FD`` is the nursery: it imports torch once, holds nothing secret, and forks
a child for every submission that is asked for on the socket FD. The child gives up its rights, then
loads the file and answers questions: bytes of tensors and a small JSON header, both ways.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import json
import os
import random
import signal
import socket
import struct
import sys
import sysconfig
import time
import traceback
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
    import resource
except ModuleNotFoundError:  # Windows, where nothing is graded
    pass

LENGTHS = struct.Struct("<II")  # of the header, of the payload
ALIGNED = 16  # bytes between the tensors of one payload
NOBODY = 65534  # Linux' nobody

# --- frames ---------------------------------------------------------------------------------------


def frame(header: dict[str, Any], payload: bytes = b"") -> bytes:
    r"""Return a header and a payload as they go over a pipe.

    Example:
        >>> frame({}, b"12")
        b'\x02\x00\x00\x00\x02\x00\x00\x00{}12'
    """
    words = json.dumps(header).encode()
    return LENGTHS.pack(len(words), len(payload)) + words + payload


def read_frame(pipe: BinaryIO) -> tuple[dict[str, Any], bytearray] | None:
    """Return the next header and payload; None at the end of the pipe."""
    lengths = pipe.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        return None
    n_header, n_payload = LENGTHS.unpack(lengths)
    header, payload = json.loads(pipe.read(n_header)), bytearray(n_payload)
    view = memoryview(payload)
    while view:
        n = pipe.readinto(view)
        if not n:
            return None
        view = view[n:]
    return header, payload


# --- giving up rights -----------------------------------------------------------------------------


class Linux:
    """The few calls that Python has no name for; each returns whether it worked."""

    def __init__(self) -> None:
        self.c = ctypes.CDLL(None, use_errno=True)

    def unshare(self, flags: int) -> bool:
        """Leave namespaces."""
        return hasattr(self.c, "unshare") and self.c.unshare(flags) == 0

    def prctl(self, option: int, value: int) -> bool:
        """Set one property of this process."""
        return hasattr(self.c, "prctl") and self.c.prctl(option, value, 0, 0, 0) == 0

    def landlock(self, readable: list[str]) -> int:
        """Allow reading below some paths, and of files nothing else; return the version, or 0."""
        create, add, restrict = 444, 445, 446  # the same on every architecture
        if sys.platform != "linux":
            return 0
        version = self.c.syscall(create, None, ctypes.c_size_t(0), ctypes.c_uint(1))
        if version < 1:
            return 0
        rights = 13 + (version >= 2) + (version >= 3) + (version >= 5)
        words = [(1 << rights) - 1]
        words += [0b11] * (version >= 4)  # TCP: bind and connect
        words += [0b11] * (version >= 6)  # abstract sockets and signals to those outside
        attributes = struct.pack(f"{len(words)}Q", *words)
        rules = self.c.syscall(create, attributes, ctypes.c_size_t(len(attributes)),
                               ctypes.c_uint(0))  # fmt: skip
        if rules < 0:
            return 0
        for path in readable:
            try:
                place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            right = 0b1100 if os.path.isdir(path) else 0b100  # read a file, list a folder
            self.c.syscall(add, ctypes.c_int(rules), ctypes.c_int(1),
                           struct.pack("=Qi", right, place), ctypes.c_uint(0))  # fmt: skip
            os.close(place)
        done = self.c.syscall(restrict, ctypes.c_int(rules), ctypes.c_uint(0)) == 0
        os.close(rules)
        return version if done else 0


NEW_USER, NEW_NET, NEW_IPC = 0x10000000, 0x40000000, 0x08000000
DIE_WITH_PARENT, NO_NEW_RIGHTS = 1, 38


def readable(folder: str) -> list[str]:
    """Return what a submission may read: its folder, the standard library, and torch's."""
    standard = sysconfig.get_paths()["stdlib"]
    entries = [os.path.join(standard, name) for name in os.listdir(standard)
               if name not in ("site-packages", "dist-packages")]  # fmt: skip
    packages = [os.path.dirname(sys.modules[name].__file__)
                for name in ("torch", "numpy", "triton") if name in sys.modules]  # fmt: skip
    return [folder, *entries, *packages, "/dev/null", "/dev/zero", "/dev/urandom"]


def give_up_rights(order: dict[str, Any]) -> list[str]:
    """Give up what the system lets go of; return in words what it did not."""
    linux, missing, root = Linux(), [], os.geteuid() == 0
    allowed = readable(order["folder"])
    if not linux.unshare((0 if root else NEW_USER) | NEW_NET | NEW_IPC):
        missing.append("the network cannot be taken away")
    pages = 0
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        missing.append("memory is not limited")
    for name, limit in (
        ("RLIMIT_CPU", order["cpu_seconds"]),
        ("RLIMIT_AS", pages * os.sysconf("SC_PAGE_SIZE") + order["memory"] if pages else None),
        ("RLIMIT_FSIZE", 0),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
        ("RLIMIT_NPROC", 0),
    ):
        if limit is not None:
            try:
                resource.setrlimit(getattr(resource, name), (limit, limit))
            except (AttributeError, ValueError, OSError):
                missing.append(f"{name} cannot be set")
    if root:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    if not linux.prctl(DIE_WITH_PARENT, signal.SIGKILL):
        missing.append("it may outlive a grader that is killed")
    version = linux.landlock(allowed) if linux.prctl(NO_NEW_RIGHTS, 1) else 0
    if not version:
        missing.append("files of others stay readable, and writable where their owner lets it")
    if version < 6 and not root:
        missing.append("signals to the grader's user are not held back: start it as root")
    return missing


# --- the submission -------------------------------------------------------------------------------


class Refusing:
    """Finds specedu's modules in the child's folder alone, and says so of any other."""

    folder = ""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module of specedu; None for a module of somebody else."""
        if name.partition(".")[0] != "specedu":
            return None
        spec = PathFinder.find_spec(name, [cls.folder] if path is None else path, target)
        if spec is None:
            raise ImportError(f"refused: {name} is not needed here")
        return spec


def load(order: dict[str, Any]) -> Any:
    """Import the submission and return the rule with its options."""
    Refusing.folder = order["folder"]
    sys.meta_path[:] = [Refusing, BuiltinImporter, FrozenImporter, PathFinder]
    module = importlib.import_module(f"specedu.kernels.{order['module']}")
    rule = getattr(module, order["function"], None)
    if not callable(rule):
        raise AttributeError(f"there is no function {order['function']}")
    takes = inspect.signature(rule).parameters
    everything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    options = {"backend": order["backend"], "check": False}
    given = {name: value for name, value in options.items() if name in takes or everything}
    return lambda *arguments, **more: rule(*arguments, **more, **given)


def rebuild(value: dict[str, Any], payload: bytearray) -> Any:
    """Return one argument as it was: same storage, same strides."""
    import torch

    if "value" in value:
        return value["value"]
    dtype = getattr(torch, value["dtype"])
    if not value["length"]:
        return torch.empty(value["shape"], dtype=dtype)
    flat = torch.frombuffer(payload, dtype=dtype, count=value["length"], offset=value["offset"])
    return flat.as_strided(value["shape"], value["stride"])


def answer(rule: Any, header: dict[str, Any], payload: bytearray) -> bytes:
    """Ask the rule one question and return the frame with its answer."""
    before = bytes(payload)
    arguments = [rebuild(value, payload) for value in header["arguments"]]
    options = {name: rebuild(value, payload) for name, value in header["options"].items()}
    result = {"number": header["number"]}
    try:
        token_ids, num_accepted = rule(*arguments, **options)
        forms, chunks = [], []
        for tensor in (token_ids, num_accepted):
            tensor = tensor.detach().cpu().contiguous()
            forms.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
            chunks.append(tensor)
        result["forms"] = forms
        fits = forms == header["forms"]
        body = b"".join(tensor.numpy().tobytes() for tensor in chunks) if fits else b""
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"[:2000]
        body = b""
    result["written"] = before != payload
    return frame(result, body)


def be_child(order: dict[str, Any], questions: int, answers: int, output: int) -> None:
    """Give up rights, scan and load the submission, then answer until the pipe ends."""
    os.setsid()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    wanted = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100)  # out of each other's way
              for descriptor in (null, output, output, questions, answers)]  # fmt: skip
    for place, descriptor in enumerate(wanted):
        os.dup2(descriptor, place)
    os.closerange(5, 4096)
    os.chdir(order["folder"])
    missing = give_up_rights(order)
    pipe, back = os.fdopen(3, "rb"), os.fdopen(4, "wb")

    def say(words: bytes) -> None:
        back.write(words)
        back.flush()

    try:
        text = Path(order["file"]).read_text(encoding="utf-8")
        refused = scan.refusals(text, order["helpers"])
        say(frame({"missing": missing, "refused": refused}))  # nothing foreign has run before this
        if refused and order["scan"]:
            return
        rule = load(order)
    except Exception as error:
        own = [each.lineno for each in traceback.extract_tb(error.__traceback__)
               if each.filename == order["file"]]  # fmt: skip
        where = f" (line {own[-1]})" if own else ""
        say(frame({"error": f"{type(error).__name__}: {error}"[:2000] + where}))
        return
    say(frame({"loaded": True}))
    while (question := read_frame(pipe)) is not None:
        say(answer(rule, *question))


# --- the nursery ----------------------------------------------------------------------------------


def be_nursery(control: socket.socket) -> None:
    """Fork a child for every order, and end it when told to."""
    children = set()
    while True:
        words, descriptors, *_ = socket.recv_fds(control, 1 << 16, 3)
        while words and not words.endswith(b"\n"):
            words += control.recv(1 << 16)
        if not words:
            break
        order = json.loads(words)
        if "end" in order:
            known = order["end"] in children
            reply = _end(order["end"], order["patience"]) if known else {}
            children.discard(order["end"])
        else:
            child = os.fork()
            if child == 0:
                try:
                    control.close()
                    be_child(order, *descriptors)
                finally:
                    os._exit(0)
            children.add(child)
            reply = {"pid": child}
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(json.dumps(reply).encode() + b"\n")
    for child in children:
        _end(child)


def _end(child: int, patience: float = 0) -> dict[str, int | bool]:
    """Kill a child with its group, unless it ends by itself in time; return its wait status."""
    end = time.monotonic() + patience
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() < end:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    for kill in (os.killpg, os.kill):
        try:
            if kill is os.killpg or not done:
                kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    if not done:
        _, status = os.waitpid(child, 0)
    return {"status": status, "killed": not done}


def _sibling(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)  # a child may start no thread
    torch.manual_seed(0)  # every child begins with the same random numbers
    random.seed(0)
    for dtype in (torch.bfloat16, torch.float16):  # torch reads /proc/cpuinfo at the first use
        row = torch.tensor([[0.5, 0.25]]).to(dtype)
        (row.float() @ row.float().T, row @ row.T, row.cumsum(1), row.sort(), row.argmax(1))
    try:
        import triton
        import triton.language  # noqa: F401
    except ModuleNotFoundError:
        pass
    scan = _sibling("scan")
    for root in scan.ROOTS:  # the child's user need not be able to read the library's folder
        try:
            importlib.import_module(root)
        except ModuleNotFoundError:
            pass
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        parent.sendall(b"ready\n")
        be_nursery(parent)
