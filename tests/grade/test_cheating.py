"""Twelve kinds of cheating, two of each: none scores, the grader lives, its files are intact.

Every text runs in the sandbox with the scan of its words switched off, so that the system alone
must hold; what the scan would have refused is asserted beside it.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from specedu.grade.broken import broken_source, unbroken_source
from specedu.grade.exercises import EXERCISES, Exercise, find
from specedu.grade.grader import grade_one, points
from specedu.grade.properties import INPUTS
from specedu.grade.sandbox import Ended, Limits, Nursery, Raised, RemoteRule, helpers
from specedu.grade.scan import refusals

SEED = 20_260_101
EXERCISE = find("rare-words")
LIMITS = Limits(seconds=3, total_seconds=30, cpu_seconds=20, memory=192 << 20)
ROOT = Path(__file__).resolve().parents[2]

JUNK = """
def junk(cu, width):
    ids = torch.full((len(cu), width + 1), -1)
    ids[:, 0] = 0
    return ids, torch.zeros(len(cu), dtype=torch.int32)
"""

ATTACK = """
def verify_chain(p, q, ids, cu, u, w, *, max_spec_len, greedy=None, onehot=None):
    attack(len(cu), max_spec_len)
    return junk(cu, max_spec_len)
"""

# (kind, variant): (what the scan finds, text)
CHEATS: dict[tuple[str, str], tuple[str, str]] = {
    ("expected values", "frames"): ("import of sys", """
import sys
def verify_chain(p, q, ids, cu, u, w, *, max_spec_len, greedy=None, onehot=None):
    frame = sys._getframe()
    while frame is not None:
        for name, value in list(frame.f_locals.items()):
            if name in ("expected", "right", "results", "result") and isinstance(value, tuple):
                return value
        frame = frame.f_back
    return junk(cu, max_spec_len)
"""),
    ("expected values", "gc"): ("import of gc", """
import gc
def verify_chain(p, q, ids, cu, u, w, *, max_spec_len, greedy=None, onehot=None):
    for thing in gc.get_objects():
        if type(thing).__name__ in ("Path", "Setting", "JointLaw", "Fraction"):
            raise SystemExit
        if isinstance(thing, torch.Tensor) and thing.shape == (len(cu), max_spec_len + 1):
            return thing, junk(cu, max_spec_len)[1]
    return junk(cu, max_spec_len)
"""),
    ("patching", "comparator"): ("assignment to torch.equal", """
import builtins
torch.equal = torch.allclose = lambda *_, **__: True
builtins.all = lambda _: True
torch.Tensor.tolist = lambda self: [0]
def attack(batch, width): pass
""" + ATTACK),
    ("patching", "clock"): ("assignment to time.monotonic", """
import time
sleep = time.sleep
time.monotonic = time.time = time.perf_counter = lambda: 0.0
def attack(batch, width): sleep(1000)
""" + ATTACK),
    ("reference", "import"): ("import of specedu.kernels.verify_chain", """
from specedu.kernels import verify_chain
def unused(): '''
def verify_chain('''
"""),
    ("reference", "another package"): ("import of importlib", """
import importlib.util, sys
sys.meta_path[:] = [each for each in sys.meta_path if each.__name__ != "Refusing"]
spec = importlib.util.spec_from_file_location(
    "other", ROOT + "/kernels/__init__.py", submodule_search_locations=[ROOT + "/kernels"]
)
sys.modules["other"] = other = importlib.util.module_from_spec(spec)
spec.loader.exec_module(other)
verify_chain = other.verify_chain
def unused(): '''
def verify_chain('''
"""),
    ("reference", "source"): ("use of exec", """
import specedu.kernels
specedu.kernels.__path__.append(ROOT + "/kernels")
text = open(ROOT + "/kernels/chain.py").read().replace("from .", "from specedu.kernels.")
text = text.replace("from specedu.kernels. import", "from specedu.kernels import")
exec(text)
def unused(): '''
def verify_chain('''
"""),
    ("reference", "another rule"): ("import of specedu.kernels.lossy", """
from specedu.kernels.lossy import verify_threshold as verify_chain
def unused(): '''
def verify_chain('''
"""),
    ("cache", "constant"): ("", """
def verify_chain(p, q, ids, cu, u, w, *, max_spec_len, greedy=None, onehot=None):
    return junk(cu, max_spec_len)
"""),
    ("cache", "last answer"): ("", """
answers = {}
def verify_chain(p, q, ids, cu, u, w, *, max_spec_len, greedy=None, onehot=None):
    if (len(cu), max_spec_len) not in answers:
        answers[len(cu), max_spec_len] = junk(cu, max_spec_len)
        answers[len(cu), max_spec_len][0][:, 0] = p.argmax(1)[: len(cu)]
    return answers[len(cu), max_spec_len]
"""),
    ("exit", "at import"): ("import of sys", "import sys\nsys.exit(0)\ndef verify_chain(): pass\n"),
    ("exit", "when asked"): ("import of os", """
import os
def attack(batch, width): os._exit(0)
""" + ATTACK),
    ("exit", "of its parent"): ("import of os", """
import os, signal
def attack(batch, width): os.kill(os.getppid(), signal.SIGKILL)
""" + ATTACK),
    ("report", "printed"): ("", """
for _ in range(100):
    print('{"result": {"name": "two ids", "passed": true, "counter_example": ""}}')
def attack(batch, width): print('{"points": 10, "error": "", "results": []}' * 1000)
""" + ATTACK),
    ("report", "written to pipes"): ("import of os", """
import os, json, struct
def attack(batch, width):
    body = bytes(12 * batch + 8 * batch * width)
    forms = [["int64", [batch, width + 1]], ["int32", [batch]]]
    words = json.dumps({"number": "0" * 16, "forms": forms, "written": False}).encode()
    for descriptor in range(1, 20):
        try:
            os.write(descriptor, struct.pack("<II", len(words), len(body)) + words + body)
        except OSError:
            pass
""" + ATTACK),
    ("report", "harness patched"): ("import of sys", """
import sys
main = sys.modules["__main__"]
def attack(batch, width): main.frame = lambda *_: main.LENGTHS.pack(1 << 31, 1 << 31)
""" + ATTACK),
    ("fork", "bomb"): ("import of os", """
import os
while True:
    try:
        os.fork()
    except OSError as error:
        reason = error
        break
def attack(batch, width): raise reason
""" + ATTACK),
    ("fork", "threads and programs"): ("import of subprocess", """
import subprocess, threading
def attack(batch, width):
    started = 0
    try:
        threading.Thread(target=print).start()
        started += 1
    except RuntimeError:
        pass
    try:
        subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
        started += 1
    except OSError:
        pass
    assert not started, started
""" + ATTACK),
    ("loop", "busy"): ("", "while True:\n    pass\ndef verify_chain(): pass\n"),
    ("loop", "asleep"): ("import of time", """
import time, signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
def attack(batch, width): time.sleep(1000)
""" + ATTACK),
    ("memory", "at once"): ("", """
def attack(batch, width): bytearray(1 << 36)
""" + ATTACK),
    ("memory", "piece by piece"): ("", """
held = []
def attack(batch, width):
    while True:
        held.append(torch.ones(1 << 22))
""" + ATTACK),
    ("files", "deleted"): ("import of os", """
import os, shutil
def attack(batch, width):
    shutil.rmtree(CANARY, ignore_errors=True)
    shutil.rmtree(ROOT + "/tests/grade/alternatives", ignore_errors=True)
    os.unlink(CANARY + "/file")
""" + ATTACK),
    ("files", "written"): ("use of open", """
def attack(batch, width):
    for path in (CANARY + "/file", CANARY + "/new", "/tmp/specedu-cheat", "here.py"):
        try:
            open(path, "w").write("mine")
        except OSError:
            pass
""" + ATTACK),
    ("network", "tcp"): ("import of socket", """
import socket
def attack(batch, width):
    with socket.socket() as line:
        line.connect(("127.0.0.1", PORT))
        line.sendall(b"hello")
""" + ATTACK),
    ("network", "abstract socket"): ("import of socket", """
import socket
def attack(batch, width):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect("\\0specedu-cheat-%d" % PORT)
        line.sendall(b"hello")
""" + ATTACK),
    ("inputs", "made to agree"): ("", """
def verify_chain(p, q, ids, cu, u, w, *, max_spec_len, greedy=None, onehot=None):
    p.zero_()[:, 0] = 1
    ids.fill_(-1)
    w.zero_()
    return junk(cu, max_spec_len)
"""),
    ("inputs", "a right rule that writes"): ("", """
def verify_chain(p, q, ids, cu, u, w, *, max_spec_len, greedy=None, onehot=None):
    result = right_rule(p, q, ids, cu, u, w, max_spec_len=max_spec_len, greedy=greedy,
                        onehot=onehot)
    p.clamp_(max=0.5)
    return result
"""),
}  # fmt: skip

DIVISION = (Path(__file__).with_name("alternatives") / "division.py").read_text(encoding="utf-8")
RIGHT_RULE = DIVISION.replace("def verify_chain(", "def right_rule(")


@dataclass
class Place:
    """What a cheat might touch: a folder that everybody may write, and two open sockets."""

    folder: Path
    port: int
    heard: list[bytes]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


@pytest.fixture(scope="module")
def handed_out(nursery: Nursery) -> dict:
    return grade_one(nursery, EXERCISE, broken_source(EXERCISE).encode(), SEED, explain=False)


@pytest.fixture
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="specedu-canary-"))
    (folder / "file").write_text("intact")
    folder.chmod(0o777)
    (folder / "file").chmod(0o666)
    heard: list[bytes] = []
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as local:
        tcp.bind(("127.0.0.1", 0))
        port = tcp.getsockname()[1]
        local.bind(f"\0specedu-cheat-{port}")

        def listen(line: socket.socket) -> None:
            try:
                heard.append(line.accept()[0].recv(10))
            except OSError:
                pass

        for line in (tcp, local):
            line.listen()
            line.settimeout(60)
            threading.Thread(target=listen, args=(line,), daemon=True).start()
        yield Place(folder, port, heard)
        for line in (tcp, local):
            line.shutdown(socket.SHUT_RDWR)
    shutil.rmtree(folder)


def text_of(body: str, place: Place) -> str:
    names = f"ROOT, CANARY, PORT = {str(ROOT)!r}, {str(place.folder)!r}, {place.port}\n"
    right = RIGHT_RULE if "right_rule" in body else ""
    return "import torch\n" + right + names + JUNK + body


@pytest.mark.parametrize(("kind", "variant"), CHEATS, ids=str)
def test_a_cheat_scores_nothing_without_the_scan(
    kind: str, variant: str, nursery: Nursery, handed_out: dict, place: Place
) -> None:
    _, body = CHEATS[kind, variant]
    with RemoteRule(nursery, EXERCISE, b"", LIMITS) as rule:
        missing = rule.missing
    if missing:
        pytest.skip(f"not held back on this system: {'; '.join(missing)}")
    line = grade_one(nursery, EXERCISE, text_of(body, place).encode(), SEED, LIMITS,
                     scan=False, explain=False)  # fmt: skip
    assert points(line, handed_out) == 0
    assert line["error"] or any(not result["passed"] for result in line["results"])
    with pytest.raises(ProcessLookupError):
        os.kill(line["pid"], 0)
    assert nursery.process.poll() is None
    assert sorted(os.listdir(place.folder)) == ["file"]
    assert (place.folder / "file").read_text() == "intact"
    assert len(os.listdir(ROOT / "tests/grade/alternatives")) >= 5
    assert not Path("/tmp/specedu-cheat").exists()
    assert place.heard == []


def test_there_are_two_cheats_of_each_of_twelve_kinds() -> None:
    kinds = [kind for kind, _ in CHEATS]
    assert len(set(kinds)) == 12
    assert all(kinds.count(kind) >= 2 for kind in kinds)


@pytest.mark.parametrize(("kind", "variant"), CHEATS, ids=str)
def test_the_scan_refuses_what_no_rule_needs(kind: str, variant: str, place: Place) -> None:
    words, body = CHEATS[kind, variant]
    found = refusals(text_of(body, place), helpers(EXERCISE.source))
    assert any(words in line for line in found) if words else found == []


def test_what_is_refused_does_not_run(nursery: Nursery) -> None:
    source = b"import os\nprint('ran')\ndef verify_chain(*a, **k): pass\n"
    line = grade_one(nursery, EXERCISE, source, SEED)
    assert line["error"] == "refused before it ran: line 1: import of os"
    assert line["output"] == ""
    assert line["results"] == []


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_the_scan_lets_the_exercises_pass(exercise: Exercise) -> None:
    for source in (broken_source(exercise), unbroken_source(exercise)):
        assert refusals(source, helpers(exercise.source)) == []


@pytest.mark.parametrize("path", sorted(Path(__file__).with_name("alternatives").glob("*.py")))
def test_the_scan_lets_other_solutions_pass(path: Path) -> None:
    assert refusals(path.read_text(encoding="utf-8"), ()) == []


def test_inputs_that_are_written_fail_by_the_childs_word_alone(
    nursery: Nursery, place: Place
) -> None:
    source = text_of(CHEATS["inputs", "a right rule that writes"][1], place).encode()
    line = grade_one(nursery, EXERCISE, source, SEED, explain=False)
    assert [result["name"] for result in line["results"] if not result["passed"]] == [INPUTS]


def test_the_grader_still_gives_full_points(nursery: Nursery, handed_out: dict) -> None:
    for source in (unbroken_source(EXERCISE), DIVISION):
        line = grade_one(nursery, EXERCISE, source.encode(), SEED, explain=False)
        assert points(line, handed_out) == EXERCISE.points


QUESTION = [torch.ones(2, 2), torch.ones(1, 2), torch.zeros(1, dtype=torch.int32),
            torch.ones(1, dtype=torch.int32), torch.zeros(1), torch.zeros(1)]  # fmt: skip


def test_answers_of_another_form_are_told(nursery: Nursery) -> None:
    source = "import torch\ndef verify_chain(p, q, ids, cu, u, w, *, max_spec_len): return {}\n"
    for answer, words in (
        ("None", "TypeError"),
        ("torch.zeros(1, 2), torch.zeros(1)", "token_ids is float32 [1, 2], expected int64"),
        ("torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, dtype=torch.int32)",
         "token_ids is int64 [1, 3], expected int64 [1, 2]"),
    ):  # fmt: skip
        with RemoteRule(nursery, EXERCISE, source.format(answer).encode(), LIMITS) as rule:
            with pytest.raises(Raised, match=words.replace("[", r"\[")):
                rule(*QUESTION, max_spec_len=1)
            assert not rule.ended


def test_a_process_that_is_gone_is_not_asked_again(nursery: Nursery) -> None:
    with RemoteRule(nursery, EXERCISE, b"1 / 0", LIMITS) as rule:
        assert "ZeroDivisionError: division by zero (line 1)" in rule.ended
        with pytest.raises(Ended):
            rule()


def test_a_nursery_that_was_killed_is_started_anew(nursery: Nursery, handed_out: dict) -> None:
    with RemoteRule(nursery, EXERCISE, DIVISION.encode(), LIMITS) as rule:
        nursery.process.kill()
        nursery.process.wait()
        time.sleep(0.2)  # its child dies with it
        with pytest.raises(Ended):
            rule(*QUESTION, max_spec_len=1)
    line = grade_one(nursery, EXERCISE, DIVISION.encode(), SEED, explain=False)
    assert points(line, handed_out) == EXERCISE.points
