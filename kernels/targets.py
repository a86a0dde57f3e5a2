"""The compile gate: every kernel, compiled for GPUs that need not be here.

``python -m specedu.kernels.targets`` compiles each Triton kernel of the package, as its public
function launches it, for three generations of NVIDIA GPUs and one of AMD's, and prints one table.
It exits with 1 when a kernel does not compile, spills registers, needs more shared memory than
``MAX_SHARED``, is compiled with contraction, or is in none of the ``SAMPLES``.

No launch is described twice: a sample calls the public function, a recorder in the kernel's place
keeps the arguments, and what Triton would derive from them (pointer types, integers that are 1 or
divisible by 16) is derived here. A new kernel needs one entry in ``SAMPLES``; its name ends in
``_kernel`` and its module imports ``pick`` as the others do.

An interpreted function cannot be compiled, so the work runs in a process of its own with
``TRITON_INTERPRET=0``; ``main`` starts it where that is not set.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from . import block, chain, coins, greedy, logspace, lossy, match, race
from .backend import interpreting, triton

TARGETS = {  # name: backend, architecture, threads in a warp
    "sm_80": ("cuda", 80, 32),  # A100
    "sm_90": ("cuda", 90, 32),  # H100, H200
    "sm_100": ("cuda", 100, 32),  # B200
    "gfx942": ("hip", "gfx942", 64),  # MI300
}

# What every CUDA device gives a block without being asked for more, and below gfx942's 64 KiB.
# One float64 tile of 4096 ids is 32 KiB, so a tile may pass through shared memory, two may not.
MAX_SHARED = 48 * 1024

# Kernels that ask for fused multiply-adds themselves, which contraction off leaves as they are.
FUSED_BY_DESIGN = {
    "_exponential_kernel": "the float64 logarithm is a polynomial written in fma",
    "_verify_block_kernel": "a division refines its quotient in fma until it is rounded correctly",
    "_verify_race_kernel": "a division, as in block verification",
    "_verify_logspace_kernel": "logarithms, exponentials and divisions",
}

POINTERS = {
    torch.bool: "*u1",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}


# --- what is compiled -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """One call of a public function whose launches are compiled.

    Attributes:
        module: where the function's kernels and ``pick`` are looked up.
        variant: what is special about the call, in a few words.
        call: runs the function on CPU tensors; nothing is computed, so their values do not matter.
    """

    module: ModuleType
    variant: str
    call: Callable[[], object]


def _int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _chain(
    vocab: int,
    dtype: torch.dtype = torch.float32,
    drafts: int = 3,
    q: bool = True,
    greedy: bool = False,
    onehot: bool = False,
    rule: Callable[..., object] = chain.verify_chain,
    **options: object,
) -> None:
    p_rows = torch.zeros(drafts + 1, vocab, dtype=dtype)
    final = torch.zeros(1, dtype=torch.float64)
    if rule is race.verify_race:
        final = torch.ones(1, vocab)
    rule(
        p_rows,
        p_rows[:drafts] if q else None,
        _int32(*range(drafts)),
        _int32(drafts),
        torch.zeros(drafts, dtype=torch.float64),
        final,
        max_spec_len=drafts,
        greedy=torch.zeros(1, dtype=torch.bool) if greedy else None,
        onehot=torch.zeros(1, dtype=torch.bool) if onehot else None,
        backend="triton",
        check=False,
        **options,
    )


def _logspace(
    vocab: int,
    dtype: torch.dtype = torch.float32,
    drafts: int = 3,
    q: bool = True,
    coins_given: bool = False,
) -> None:
    rows, word = torch.zeros(drafts + 1, vocab, dtype=dtype), _int32(0)
    logspace.verify_logspace(
        rows,
        rows[:drafts] if q else None,
        _int32(*range(drafts)),
        _int32(drafts),
        torch.ones(1),
        word.long(),
        word,
        word,
        max_spec_len=drafts,
        accept_coins=torch.zeros(drafts, dtype=torch.float64) if coins_given else None,
        noise=torch.ones(1, vocab) if coins_given else None,
        onehot=torch.zeros(1, dtype=torch.bool) if q else None,
        backend="triton",
        check=False,
    )


def _greedy(drafts: int) -> None:
    greedy.verify_greedy(
        torch.zeros(drafts + 1, dtype=torch.int64),
        _int32(*range(drafts)),
        _int32(drafts),
        max_spec_len=drafts,
        backend="triton",
        check=False,
    )


def _match(
    vocab: int, dtype: torch.dtype = torch.float32, drafts: int = 3, greedy: bool = False
) -> None:
    match.verify_match(
        torch.zeros(drafts + 1, vocab, dtype=dtype),
        _int32(*range(drafts)),
        _int32(drafts),
        torch.zeros(drafts + 1, dtype=torch.float64),
        max_spec_len=drafts,
        greedy=torch.zeros(1, dtype=torch.bool) if greedy else None,
        backend="triton",
        check=False,
    )


def _uniform(n: int, purpose: coins.Purpose) -> None:
    seeds, words = torch.zeros(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int32)
    coins.uniform(seeds, words, words, purpose, backend="triton", check=False)


def _exponential(vocab: int, purpose: coins.Purpose) -> None:
    seed, word = torch.zeros(1, dtype=torch.int64), _int32(0)
    coins.exponential(seed, word, word, vocab, purpose=purpose, backend="triton", check=False)


LLAMA = 128256  # Llama 3's vocabulary, a multiple of 16: rows are aligned, loads are wide
GPT2 = 50257  # an odd number: no row but the first is aligned, every entry is loaded alone
FULL = {"greedy": True, "onehot": True}
_RATES = torch.ones(3, dtype=torch.float64)

# Each flag is on and off, each dtype and each kind of row occurs; every tile is 4096 ids wide but
# where the vocabulary is smaller. An integer argument that is 1 is a constant to Triton and takes
# another path through its compiler: hence "one id" and "one draft".
SAMPLES: tuple[Sample, ...] = (
    Sample(chain, "fp32 q greedy onehot", partial(_chain, LLAMA, **FULL)),
    Sample(chain, "fp32 q", partial(_chain, LLAMA)),
    Sample(chain, "fp32 greedy", partial(_chain, LLAMA, q=False, greedy=True)),
    Sample(chain, "fp32", partial(_chain, LLAMA, q=False)),
    Sample(chain, "fp16 q greedy onehot", partial(_chain, LLAMA, torch.float16, **FULL)),
    Sample(chain, "bf16 q greedy onehot", partial(_chain, LLAMA, torch.bfloat16, **FULL)),
    Sample(chain, "fp32 q greedy onehot, odd rows", partial(_chain, GPT2, **FULL)),
    Sample(chain, "fp32 q greedy onehot, 3 ids", partial(_chain, 3, **FULL)),
    Sample(chain, "fp32 q greedy onehot, one id, one draft", partial(_chain, 1, drafts=1, **FULL)),
    *(
        Sample(
            module, f"{name} {words}".strip(), partial(_chain, *sizes, rule=rule, **flags, **more)
        )
        for module, name, rule, more in (
            (block, "", block.verify_block, {}),
            (race, "", race.verify_race, {}),
            (lossy, "threshold", lossy.verify_threshold, {"accept_threshold_acc": 0.5}),
            (lossy, "synthetic", lossy.verify_synthetic, {"conditional_rates": _RATES}),
        )
        for words, sizes, flags in (
            ("fp32 q greedy onehot", (LLAMA,), FULL),
            ("fp32", (LLAMA,), {"q": False}),
            ("bf16 q greedy onehot", (LLAMA, torch.bfloat16), FULL),
            ("fp32 q greedy onehot, odd rows", (GPT2,), FULL),
        )
    ),
    Sample(logspace, "fp32 q", partial(_logspace, LLAMA)),
    Sample(logspace, "fp32", partial(_logspace, LLAMA, q=False)),
    Sample(logspace, "bf16 q", partial(_logspace, LLAMA, torch.bfloat16)),
    Sample(logspace, "fp32 q, odd rows", partial(_logspace, GPT2)),
    Sample(logspace, "fp32 q, coins given", partial(_logspace, LLAMA, coins_given=True)),
    Sample(greedy, "3 drafts", partial(_greedy, 3)),
    Sample(greedy, "one draft", partial(_greedy, 1)),
    Sample(match, "fp32 greedy", partial(_match, LLAMA, greedy=True)),
    Sample(match, "fp32", partial(_match, LLAMA)),
    Sample(match, "bf16 greedy", partial(_match, LLAMA, torch.bfloat16, greedy=True)),
    Sample(match, "fp32 greedy, odd rows", partial(_match, GPT2, greedy=True)),
    Sample(match, "fp32 greedy, one id, one draft", partial(_match, 1, drafts=1, greedy=True)),
    Sample(coins, "1024 coins", partial(_uniform, 1024, coins.Purpose.FINAL)),
    Sample(coins, "one coin", partial(_uniform, 1, coins.Purpose.ACCEPT)),
    Sample(coins, "128256 ids", partial(_exponential, LLAMA, coins.Purpose.NOISE)),
    Sample(coins, "one id", partial(_exponential, 1, coins.Purpose.ACCEPT)),
)


# --- from a call to what Triton compiles ----------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """A kernel with the arguments and options that it was launched with."""

    kernel: Any
    variant: str
    arguments: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.__name__


class _Recorder:
    """Stand in for a kernel: keep what it is launched with and compute nothing."""

    def __init__(self, kernel: Any, variant: str, launches: list[Launch]) -> None:
        self.kernel, self.variant, self.launches = kernel, variant, launches

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._keep

    def _keep(self, *arguments: Any, **named: Any) -> None:
        parameters = inspect.signature(self.kernel.fn)
        options = {key: named.pop(key) for key in list(named) if key not in parameters.parameters}
        bound = parameters.bind(*arguments, **named)
        bound.apply_defaults()
        self.launches.append(Launch(self.kernel, self.variant, dict(bound.arguments), options))


def launches_of(sample: Sample) -> list[Launch]:
    """Return the launches that a sample's call makes, in their order.

    Kernels are told from other functions by their type, which the interpreter changes: it must be
    off, as it is in the process that ``main`` starts.

    Raises:
        ValueError: the public function refuses the sample's arguments.
    """
    launches: list[Launch] = []
    recorders = {
        name: _Recorder(kernel, sample.variant, launches)
        for name, kernel in vars(sample.module).items()
        if _is_kernel(name, kernel)
    }
    with patch.multiple(sample.module, pick=lambda backend, device: "triton", **recorders):
        sample.call()
    return launches


def _is_kernel(name: str, value: object) -> bool:
    return name.endswith("_kernel") and isinstance(value, triton.JITFunction)


def package_kernels() -> set[str]:
    """Return the names of the kernels that this package's modules define."""
    package = importlib.import_module(__package__)
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    return {
        name
        for module in modules
        for name, value in vars(module).items()
        if _is_kernel(name, value)
    }


def specialise(launch: Launch, backend: str) -> tuple[dict[str, str], dict[str, Any], dict]:
    """Return the signature, constants and attributes that Triton derives from a launch.

    An integer that is 1, None, and a parameter marked constexpr become constants. Pointers and
    integers divisible by 16 are marked, which is what lets loads be wide; on AMD a pointer into
    less than 2 GiB is marked too, because then its offsets fit in 32 bits.

    Raises:
        TypeError: an argument is of a kind that no kernel here takes.
    """
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    parameters = inspect.signature(launch.kernel.fn).parameters
    for place, (name, value) in enumerate(launch.arguments.items()):
        marks = []
        constant = value is None or (type(value) is int and value == 1)
        if constant or "constexpr" in str(parameters[name].annotation):
            signature[name] = "constexpr"
            constants[name] = value
        elif isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            if value.data_ptr() % 16 == 0:
                marks.append(["tt.divisibility", 16])
            if backend == "hip" and value.untyped_storage().nbytes() < 2**31:
                marks.append(["tt.pointer_range", 32])
        elif type(value) is int:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0:
                marks.append(["tt.divisibility", 16])
        elif type(value) is float:
            signature[name] = "fp32"
        else:
            raise TypeError(f"{launch.name}: {name} = {value!r}, expected a tensor, int or float")
        if marks:
            attributes[(place,)] = marks
    return signature, constants, attributes


# --- compiling and reading what came out ----------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """One kernel in one variant for one target.

    Attributes:
        seconds: how long the compiler took, disassembly not included; None if it failed.
        shared: bytes of shared memory a block.
        registers: vector registers a thread.
        spills: on NVIDIA how many instructions touch local memory, on AMD how many vector registers
            were spilled.
        fused: how many floating-point multiply-adds round once.
        faults: what the gate has against it, one sentence each.
    """

    kernel: str
    variant: str
    target: str
    seconds: float | None = None
    shared: int | None = None
    registers: int | None = None
    spills: int | None = None
    fused: int | None = None
    faults: tuple[str, ...] = ()


def compile_launch(launch: Launch, target: str, max_shared: int = MAX_SHARED) -> Compiled:
    """Compile a launch for a target and judge the result; a failure to compile is a fault too."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, architecture, warp = TARGETS[target]
    signature, constants, attributes = specialise(launch, backend)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    began = time.perf_counter()
    try:
        binary = triton.compile(source, GPUTarget(backend, architecture, warp), launch.options)
    except Exception as error:  # each stage of the compiler has its own kinds
        words = f"does not compile: {type(error).__name__}: {error}"
        return Compiled(launch.name, launch.variant, target, faults=(words,))
    seconds = time.perf_counter() - began

    read = {"cuda": _read_cuda, "hip": _read_hip}[backend]
    registers, spills, fused = read(binary.asm)
    shared = binary.metadata.shared
    faults = []
    if spills:
        faults.append(f"spills: {spills}, expected 0")
    if shared > max_shared:
        faults.append(f"shared memory: {shared} bytes, expected at most {max_shared}")
    if launch.options.get("enable_fp_fusion") is not False:
        faults.append("contraction: launched without enable_fp_fusion=False")
    if fused and launch.name not in FUSED_BY_DESIGN:
        faults.append(f"contraction: {fused} fused multiply-adds, expected 0")
    return Compiled(
        launch.name,
        launch.variant,
        target,
        seconds,
        shared,
        registers,
        spills,
        fused,
        tuple(faults),
    )


def _read_cuda(asm: Any) -> tuple[int, int, int]:
    """Return registers, spills and fused multiply-adds from the disassembly.

    The PTX would not do for the last: ptxas, behind it, is what contracts. A register is named by
    its first of two or four, so the count is rounded up to 8, the unit in which they are allotted.
    """
    with _silent_stderr():  # nvdisasm warns about the file format of sm_80 and sm_90, every time
        sass = asm["sass"]
    highest = max(int(number) for number in re.findall(r"\bR(\d+)\b", sass))
    spills = len(re.findall(r"\b(?:STL|LDL)\b", sass))
    return (highest // 8 + 1) * 8, spills, len(re.findall(r"\b[DF]FMA\b", sass))


def _read_hip(asm: Any) -> tuple[int, int, int]:
    """Return registers, spills and fused multiply-adds from the assembly."""
    code = asm["amdgcn"]
    registers, spills = (
        int(re.search(rf"\.{key}:\s+(\d+)", code)[1]) for key in ("vgpr_count", "vgpr_spill_count")
    )
    fused = re.findall(r"\bv_(?:pk_)?(?:fma|fmac|mad|mac)\w*_f(?:16|32|64)", code)
    return registers, spills, len(fused)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# --- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile everything, print the table, return 0 if nothing is at fault, 1 otherwise.

    Returns:
        2 where Triton is not installed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m specedu.kernels.targets", description="Compile every kernel, without a GPU."
    )
    parser.add_argument(
        "--target", action="append", choices=list(TARGETS), help="only this one; may be repeated"
    )
    parser.add_argument("--kernel", action="append", help="only this one; may be repeated")
    parser.add_argument(
        "--max-shared", type=int, default=MAX_SHARED, metavar="BYTES", help="default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(arguments)
    if triton is None:
        print("nothing to compile: the package triton is not installed here", file=sys.stderr)
        return 2
    if os.environ.get("TRITON_INTERPRET") != "0" or interpreting():
        return _in_own_process(sys.argv[1:] if arguments is None else arguments)

    launches = [launch for sample in SAMPLES for launch in launches_of(sample)]
    listed = {launch.name for launch in launches}
    unlisted = sorted(package_kernels() - listed)
    for name in options.kernel or ():
        if name not in listed:
            parser.error(f"--kernel: {name!r}, expected one of {', '.join(sorted(listed))}")
    compiled = [
        compile_launch(launch, target, options.max_shared)
        for launch in launches
        for target in options.target or TARGETS
        if options.kernel is None or launch.name in options.kernel
    ]
    if options.json:
        report = {
            "triton": triton.__version__,
            "max_shared": options.max_shared,
            "unlisted": unlisted,
            "compiled": [asdict(entry) for entry in compiled],
        }
        print(json.dumps(report))
    else:
        _print_table(compiled)
    faults = [f"{name}: in none of the SAMPLES" for name in unlisted]
    for entry in compiled:
        label = f"{entry.kernel} ({entry.variant}) for {entry.target}"
        faults += [f"{label}: {fault}" for fault in entry.faults]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


def _in_own_process(arguments: Sequence[str]) -> int:
    """Run the command again without the interpreter and, unless one is set, with an empty cache.

    A cached kernel is reported like any other, but its seconds are those of a file being read.
    """
    with tempfile.TemporaryDirectory() as cache:
        environment = {"TRITON_CACHE_DIR": cache} | os.environ | {"TRITON_INTERPRET": "0"}
        command = [sys.executable, "-m", "specedu.kernels.targets", *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


def _print_table(compiled: Sequence[Compiled]) -> None:
    seconds = sum(entry.seconds or 0.0 for entry in compiled)
    count = f"{len(compiled)} compilations, {seconds:.0f} s"
    table = Table(title=f"Triton {triton.__version__}: {count}")
    for column in ("kernel", "variant", "target"):
        table.add_column(column)
    for column in ("seconds", "shared bytes", "registers", "spills", "fma"):
        table.add_column(column, justify="right")
    for entry in compiled:
        time_taken = "failed" if entry.seconds is None else f"{entry.seconds:.2f}"
        numbers = (entry.shared, entry.registers, entry.spills, entry.fused)
        words = ("-" if number is None else str(number) for number in numbers)
        table.add_row(entry.kernel, entry.variant, entry.target, time_taken, *words)
    Console(width=130).print(table)  # as wide as its rows, also where the output is a file


if __name__ == "__main__":
    sys.exit(main())
