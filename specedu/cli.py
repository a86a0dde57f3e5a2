"""Commands: ``specedu generate | advise | sweep | models | doctor | law | exercise | grade``."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from specedu import generate
from specedu.advise import command as advice
from specedu.config import SamplingParams
from specedu.grade import command as exercises
from specedu.grade import grading
from specedu.kernels import backend, verify_chain
from specedu.llm import DTYPES, LLM
from specedu.models.linear import int4_products, packing_works
from specedu.models.loading import (
    DEFAULT,
    EMBEDDED,
    NEEDED_BYTES,
    VARIABLE,
    Embedded,
    LoadingError,
    cache_folder,
    fetch,
    resolve,
)
from specedu.sweep import command as sweeping
from specedu.theory.cells import Path, Rule, block_cuts, chain_cuts, match_cuts
from specedu.theory.exact import JointLaw, joint_laws
from specedu.theory.reference import Law
from specedu.theory.settings import PAIRS, Setting, fixed, grid, law_of, show, turning
from specedu.theory.verdict import CounterExample, counter_example, endpoints, is_wrong, size

RIGHT, WRONG, USAGE = 0, 1, 2

CUTS = {"chain": chain_cuts, "block": block_cuts, "match": match_cuts}  # of specedu law --cuts


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0 right, 1 wrong, 2 for a mistake in the call."""
    parser = argparse.ArgumentParser(prog="specedu", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    law = commands.add_parser(
        "law",
        help="compute the exact law of an acceptance rule",
        description="Compute, as fractions, the law of what an acceptance rule emits, and compare "
        "it with the target's. FUNCTION takes (target_probs, draft_probs, draft_token_ids, "
        "cu_num_draft_tokens, accept_coins, final_coins, *, max_spec_len) in the layout of "
        "specedu.kernels.verify_chain and returns (token_ids, num_accepted).",
    )
    law.add_argument(
        "rule", metavar="MODULE:FUNCTION", help="looked up from the current folder too"
    )
    law.add_argument("--p", type=law_argument, help="the target's law, like '1/4 3/4' (with --q)")
    law.add_argument("--q", type=law_argument, help="the draft's law")
    law.add_argument("--vocab", type=int, nargs="+", default=[2, 3], choices=sorted(PAIRS),
                     help="vocabulary sizes of the built-in pairs (default: 2 3)")  # fmt: skip
    law.add_argument("--kappa", type=int, nargs="+", default=[1, 2], choices=range(5),
                     help="drafted tokens a step (default: 1 2)")  # fmt: skip
    law.add_argument(
        "--cuts",
        choices=CUTS,
        default="chain",
        help="where the theory expects the rule to change (default: chain); a rule that "
        "changes elsewhere too is searched, and its law carries a bound",
    )
    law.add_argument("--all", action="store_true", help="print every setting, not the wrong ones")
    law.add_argument("--backend", help="passed on to FUNCTION as backend=")
    law.add_argument("--device", default="cpu", help="where the tensors lie (default: cpu)")
    law.add_argument("--seed", type=int, default=0, help="of the random points (default: 0)")
    law.set_defaults(run=run_law)
    add_generate(commands)
    add_advise(commands)
    sweep = commands.add_parser("sweep", help="raise concurrency until speculation stops paying")
    sweeping.add_arguments(sweep)
    sweep.set_defaults(run=run_sweep)
    exercise = commands.add_parser("exercise", help="find and fix what is wrong in a kernel")
    exercises.add_arguments(exercise)
    exercise.set_defaults(run=run_exercise)
    grader = commands.add_parser("grade", help="grade a folder of submissions, held-out cases")
    grading.add_arguments(grader)
    grader.set_defaults(run=run_grade)
    models = commands.add_parser("models", help="list the embedded models, and fetch them")
    models.add_argument("name", nargs="?", choices=list(EMBEDDED), help="fetch this one")
    models.set_defaults(run=run_models)
    doctor = commands.add_parser("doctor", help="tell what of specedu can run on this machine")
    doctor.set_defaults(run=run_doctor)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except UsageError as error:
        print(f"specedu {arguments.command}: {error}", file=sys.stderr)
        return USAGE


def law_argument(words: str) -> Law:
    """Read a law from the command line; argparse shows the message of this error alone."""
    try:
        return law_of(words)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class UsageError(Exception):
    """A mistake in the call, told in one line."""


# --- specedu generate, models, doctor -------------------------------------------------------------


def add_generate(commands: Any) -> None:
    """Add the arguments of ``specedu generate``; names are those of vLLM's example script."""
    command = commands.add_parser(
        "generate", help="answer a prompt, every token marked by how it was decided"
    )
    command.add_argument("prompt", help="a user's message; with --raw the beginning of a text")
    add_pair(command, kappa=3, none=True)
    command.add_argument("--temp", type=float, default=0.0)
    command.add_argument("--output-len", type=int, default=128)
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--raw", action="store_true", help="no chat template")
    command.add_argument("--no-compare", action="store_true", help="do not decode plainly too")
    command.set_defaults(run=run_generate)


def add_pair(command: argparse.ArgumentParser, kappa: int, none: bool = False) -> None:
    """Add the arguments that choose a model and its draft."""
    command.add_argument("--model", default=None, help=f"a name, a folder (default: {DEFAULT})")
    command.add_argument("--dtype", default="float32", choices=list(DTYPES))
    command.add_argument(
        "--method",
        default="ngram",
        choices=["ngram", "draft_model", "int4", "early_exit", *(["none"] if none else [])],
        help="draft_model: the model drafts for itself; int4: the same, its weights in four bits",
    )
    command.add_argument("--early-exit-layers", type=int, default=24, metavar="N")
    command.add_argument("--num-spec-tokens", type=int, default=kappa, metavar="KAPPA",
                         help=f"drafts a step (default: {kappa})")  # fmt: skip
    command.add_argument("--prompt-lookup-min", type=int, default=2, metavar="N")
    command.add_argument("--prompt-lookup-max", type=int, default=4, metavar="N")


def speculative_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the ``speculative_config`` that the arguments of ``add_pair`` describe."""
    config = {"method": arguments.method, "num_speculative_tokens": arguments.num_spec_tokens}
    if arguments.method == "ngram":
        config["prompt_lookup_min"] = arguments.prompt_lookup_min
        config["prompt_lookup_max"] = arguments.prompt_lookup_max
    elif arguments.method == "early_exit":
        config["early_exit_layers"] = arguments.early_exit_layers
    else:
        quantization = "int4" if arguments.method == "int4" else None
        config |= {"method": "draft_model", "model": "self", "quantization": quantization}
    return config


def run_generate(arguments: argparse.Namespace) -> int:
    """Stream an answer, then print what speculation did for it."""
    config = speculative_settings(arguments)
    console = Console(highlight=False)
    try:
        params = SamplingParams(
            temperature=arguments.temp, max_tokens=arguments.output_len, seed=arguments.seed
        )
        settings = None if arguments.method == "none" else config
        llm = LLM(arguments.model or resolve(), settings, dtype=arguments.dtype, record=True)
        encode = llm.tokenizer.encode
        ids = (
            encode(arguments.prompt)
            if arguments.raw
            else llm.tokenizer.chat([{"role": "user", "content": arguments.prompt}])
        )
        llm.engine.check_request(ids, params)
    except (ValueError, LoadingError) as error:
        raise UsageError(str(error)) from error
    console.print(generate.legend())
    drafted = generate.run(llm, ids, params, generate.printer(console, llm))
    console.print()
    plain = None
    if settings and not arguments.no_compare:
        alone = LLM(llm.model, tokenizer=llm.tokenizer, record=True)
        plain = generate.run(alone, ids, params)
    console.print(generate.table(drafted, plain, arguments.num_spec_tokens if settings else 0))
    return RIGHT


def add_advise(commands: Any) -> None:
    """Add the arguments of ``specedu advise``."""
    command = commands.add_parser(
        "advise",
        help="measure whether, and with how many drafts, speculation pays",
        description="Measure a pair on this machine in about two minutes and say what to do; or "
        "read what a running server says of itself with --metrics.",
    )
    add_pair(command, kappa=7)
    advice.add_arguments(command)
    command.set_defaults(run=run_advise)


def run_advise(arguments: argparse.Namespace) -> int:
    """Print what was measured, or read, and what follows."""
    try:
        advice.run(arguments, speculative_settings(arguments))
    except (ValueError, LoadingError, OSError) as error:
        raise UsageError(str(error)) from error
    return RIGHT


def run_sweep(arguments: argparse.Namespace) -> int:
    """Measure a grid and write its report; 1 where a cell failed."""
    try:
        return sweeping.run_command(arguments)
    except sweeping.Mistakes as error:
        raise UsageError(str(error)) from error


def run_exercise(arguments: argparse.Namespace) -> int:
    """List, write or check an exercise; 1 where a check does not pass."""
    try:
        return RIGHT if exercises.run(arguments) else WRONG
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error


def run_grade(arguments: argparse.Namespace) -> int:
    """Grade a folder of submissions."""
    try:
        grading.run(arguments)
    except (ValueError, OSError) as error:
        raise UsageError(str(error)) from error
    return RIGHT


def run_models(arguments: argparse.Namespace) -> int:
    """List the embedded models with where they are, or fetch one."""
    try:
        if arguments.name:
            print(fetch(EMBEDDED[arguments.name]))
            return RIGHT
    except LoadingError as error:
        raise UsageError(str(error)) from error
    for model in EMBEDDED.values():
        folder = cache_folder() / model.name
        state = f"in {folder}" if folder.is_dir() else f"not fetched yet, {model.megabytes} MB"
        print(f"{model.name}  {model.licence}  {state}")
    other = os.environ.get(VARIABLE, "-")
    print(f"{VARIABLE} names a folder, hub id or GGUF file to use instead: {other}")
    return RIGHT


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print what is installed, and whether a kernel gives a known answer; 1 if it does not."""
    triton = backend.triton.__version__ if backend.triton else "not installed"
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    print(f"python {platform.python_version()}, torch {torch.__version__}, triton {triton}")
    print(f"GPU: {gpu}; Triton's interpreter: {'on' if backend.interpreting() else 'off'}")
    healthy = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kernels = False
    for name in backend.BACKENDS:
        try:
            right = all(
                end.right
                for end in endpoints(functools.partial(verify_chain, backend=name), device)
            )
            words = "gives the known answers" if right else "gives WRONG answers"
        except RuntimeError as error:
            right, words = name == "triton", f"cannot run here: {error}"
        else:
            kernels |= right and name == "triton"
        healthy &= right
        print(f"verify_chain, backend {name}: {words}")
    run_models(argparse.Namespace(name=None))
    print("What can run here:")
    for part, words in abilities(kernels):
        print(f"  {part:<26} {words}")
    return RIGHT if healthy else WRONG


def abilities(kernels: bool) -> list[tuple[str, str]]:
    """Return (part of specedu, whether it can run here) for what depends on the machine.

    Args:
        kernels: whether a Triton kernel ran and was right.
    """
    ran, interpreted = "yes" if kernels else "no, see above", backend.interpreting()
    on_gpu = "no, the interpreter is on" if interpreted else ran
    packed = [name for name, dtype in DTYPES.items() if packing_works(dtype)]
    try:
        int4_products()
        four_bits = "yes"
    except ValueError as error:
        four_bits = f"no, {error}"
    return [
        ("kernels, interpreted", ran if interpreted else "no, the interpreter is off"),
        ("kernels on a GPU", on_gpu if torch.cuda.is_available() else "no GPU"),
        ("the real model", real_model(EMBEDDED[DEFAULT])),
        ("a draft in four bits", four_bits),
        ("packed products", ", ".join(packed) or "none, plain products serve"),
        ("figures in a notebook", widgets()),
    ]


def widgets() -> str:
    """Return the versions of what the figures of a live notebook need, or what is missing."""
    found = {}
    for name in ("anywidget", "ipywidgets"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return f"no, pip install {name}"
    return "yes, " + ", ".join(f"{name} {version}" for name, version in found.items())


def real_model(model: Embedded) -> str:
    """Return whether an embedded model is there, or what it needs."""
    cache = cache_folder()
    if (cache / model.name).is_dir():
        return "yes, cached"
    if (cache / model.wheel).exists():
        return f"yes, converted at first use from {model.wheel}"
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    if free < NEEDED_BYTES:
        return f"no, {free / 1e9:.1f} GB free in {there}, expected {NEEDED_BYTES / 1e9:.0f}"
    return f"after a download of {model.megabytes} MB at first use"


# --- specedu law ----------------------------------------------------------------------------------


def run_law(arguments: argparse.Namespace) -> int:
    """Print what the exact law says of a rule."""
    rule = find_rule(arguments.rule)
    if arguments.backend:
        rule = functools.partial(rule, backend=arguments.backend)
    console = Console(highlight=False, soft_wrap=True)
    console.size = console.size.__class__(max(console.width, 120), console.height)
    try:
        laws, left_out = compute_laws(rule, arguments)
        ends = endpoints(rule, arguments.device)
        example = counter_example(rule, laws)
    except Exception as error:
        raise UsageError(f"{arguments.rule} raised {type(error).__name__}: {error}") from error

    wrong = sorted(filter(is_wrong, laws), key=size)
    asked = sum(law.asked for law in laws)
    console.print(f"{arguments.rule}: {len(laws)} settings, {asked:,} requests asked{left_out}\n")
    if arguments.all:
        console.print(laws_table(laws, "Every setting"))
    elif wrong:
        shown = f"{len(wrong)} settings are wrong" + f", {SHOWN} shown" * (len(wrong) > SHOWN)
        console.print(laws_table(wrong[:SHOWN], shown))
    if wrong:
        console.print(texts_table(wrong[0]))
    if example:
        print_example(console, example)
    console.print("Coin endpoints")
    for end in ends:
        console.print(f"  {end.question:<42} {end.verdict}", markup=False)
    return print_verdict(console, laws, sum(not end.right for end in ends))


def find_rule(words: str) -> Rule:
    """Import FUNCTION from MODULE; the current folder is searched first, as ``python -m`` does.

    Raises:
        UsageError: the words have another form, or nothing callable is found.
    """
    module, colon, name = words.partition(":")
    if not (module and colon and name):
        raise UsageError(f"rule: {words!r}, expected MODULE:FUNCTION")
    sys.path.insert(0, os.getcwd())
    try:
        rule = functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise UsageError(f"rule: {words!r}, {error}") from error
    if not callable(rule):
        raise UsageError(f"rule: {words!r} is a {type(rule).__name__}, expected a function")
    return rule


def compute_laws(rule: Rule, arguments: argparse.Namespace) -> tuple[list[JointLaw], str]:
    """Return the laws, and words on what was left out (empty: nothing)."""
    if bool(arguments.p) != bool(arguments.q):
        raise UsageError("--p and --q go together")
    left_out = ""
    groups: list[list[Setting]] = []
    for onehot in (False, True):
        if arguments.p:
            if len(arguments.p) != len(arguments.q):
                raise UsageError(f"--p has {len(arguments.p)} ids and --q {len(arguments.q)}")
            pair = arguments.p, arguments.q
            groups.append([make(*pair, kappa, onehot=onehot)
                           for kappa in arguments.kappa for make in (fixed, turning)])  # fmt: skip
        else:
            groups += [list(grid([v], arguments.kappa, [onehot])) for v in arguments.vocab]
    if not takes_onehot(rule, arguments.device):
        groups = [group for group in groups if not group[0].onehot]
        left_out = "; one-hot drafts left out, since it does not take draft_probs=None"
    laws = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for i, group in enumerate(groups):
            task = progress.add_task(f"vocabulary of {group[0].vocab}, part {i + 1}/{len(groups)}")

            def advance(done: int, total: int, task: int = task) -> None:
                progress.update(task, completed=done, total=total)

            laws += joint_laws(
                rule,
                group,
                cuts=CUTS[arguments.cuts],
                device=arguments.device,
                seed=arguments.seed,
                on_progress=advance,
            )
    return laws, left_out


def takes_onehot(rule: Rule, device: str) -> bool:
    """Return whether the rule takes ``draft_probs=None``: it is tried on one request."""
    try:
        joint_laws(rule, [fixed(law_of("1/2 1/2"), law_of("1 0"), 1, onehot=True)], device=device)
    except Exception:
        return False
    return True


SHOWN = 8  # wrong settings in the table; --all shows every setting


def laws_table(laws: Sequence[JointLaw], title: str) -> Table:
    """Return one row a setting: how far its law is from the target's."""
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("setting", no_wrap=True)
    for heading in ("kappa", "q given", "E", "largest deviation", "may be off by"):
        table.add_column(heading, justify="right", no_wrap=True)
    for law in laws:
        setting = law.setting
        table.add_row(
            setting.name,
            str(setting.kappa),
            "one-hot" if setting.onehot else "in full",
            fraction(law.emitted),
            fraction(law.deviation),
            "0" if law.bound == 0 else f"{float(law.bound):.0e}",
            style="red" if is_wrong(law) else "",
        )
    return table


def texts_table(law: JointLaw) -> Table:
    """Return the law of one setting beside the target's, text by text."""
    title = f"The smallest of them, {law.setting.name}, kappa = {law.setting.kappa}: its joint law"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for heading in ("text", "emitted", "target", "difference"):
        table.add_column(heading, justify="right")
    for text in sorted(law.law.keys() | law.target.keys()):
        ours, target = law.law.get(text, Fraction(0)), law.target.get(text, Fraction(0))
        table.add_row(
            " ".join(map(str, text)), fraction(ours), fraction(target), fraction(ours - target)
        )
    return table


def fraction(value: Fraction) -> str:
    """Return a fraction as it is, or as a decimal where it is longer than a line can hold.

    Example:
        >>> fraction(Fraction(1, 8)), fraction(Fraction(1, 3) + Fraction(1, 2**40))
        ('1/8', '0.333333')
    """
    exact = str(value)
    return exact if len(exact) <= 16 else f"{float(value):.6g}"


def print_example(console: Console, example: CounterExample) -> None:
    """Print one request at which the rule and the contract part."""
    path: Path = example.path
    console.print("Smallest counter-example")
    for i, p in enumerate(path.ps):
        q = show(path.qs[i]) if i < len(path.qs) and not path.setting.onehot else "one-hot"
        of = (
            f"q = {q}   draft {path.ids[i]}   u = {example.coins[i]}"
            if i < len(path.ids)
            else "bonus"
        )
        console.print(f"  row {i}   p = {show(p)}   {of}", markup=False)
    console.print(f"  w = {example.coins[-1]}", markup=False)
    console.print(f"  emitted {list(example.emitted)}, and the contract's rule emits "
                  f"{list(example.contract)}\n", markup=False)  # fmt: skip


def print_verdict(console: Console, laws: Sequence[JointLaw], wrong_ends: int) -> int:
    """Print the last line and return the exit status that goes with it."""
    wrong = sum(map(is_wrong, laws))
    unsure = sum(law.bound > 0 for law in laws) - wrong
    ends = f"{wrong_ends} coin endpoints wrong" if wrong_ends else "every coin endpoint right"
    if wrong:
        console.print(f"\nNOT the target's law in {wrong} of {len(laws)} settings; {ends}")
    elif unsure > 0:
        worst = max(float(law.bound) for law in laws)
        console.print(f"\nthe target's law to within {worst:.0e} in every setting; {ends}")
    else:
        console.print(f"\nthe target's law, deviation 0, in all {len(laws)} settings; {ends}")
    return WRONG if wrong or wrong_ends else RIGHT


if __name__ == "__main__":
    sys.exit(main())
