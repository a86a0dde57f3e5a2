# %% [markdown]
# # Lab 08: the acceptance sweep
#
# *45 minutes · difficulty 3 of 5 · runs on a CPU; the full one on an H100*
#
# Everything is held fixed, the number of requests at once is raised, and the speed-up is watched until
# it falls below 1. You will predict where, run the smallest sweep that can tell, and work out from its
# record what the report says.

# %%
from specedu.cli import main

main(["doctor"])

# %% [markdown]
# ## Predict first
#
# SmolLM2 with n-gram drafts, three a step, copies a text. Up to how many requests at once will it be
# faster on this machine than plain decoding? Say 0 if it loses with a single one, and infinity if you
# think that it never loses. Lab 07 has the model behind a good guess: what is $T^*$ of a CPU?

# %%
# BEGIN SOLUTION
my_guess = 6
# STUB my_guess = ...  # a number of requests, or float("inf")
# END SOLUTION

from specedu.labs import lab08

lab08.check_guess(my_guess)

# %% [markdown]
# ## A grid
#
# A sweep is a file: backends, methods, and the values of each axis. This one is shipped as `cpu-5min`.

# %%
from importlib import resources

print((resources.files("specedu.sweep") / "presets" / "cpu-5min.yaml").read_text())

# %% [markdown]
# Every value of an axis meets every value of the others. A speed-up has two sides, so plain decoding is
# measured too, once for each kind and concurrency; it has no draft length. A cell that two entries of
# `sweeps` name is measured once.
#
# **Exercise 1.** How many cells are that, and how many of them decode plainly?

# %%
# BEGIN SOLUTION
my_plain = 2 * 3
my_cells = my_plain + 2 * 2 * 3 + 2  # two methods at kappa 3; then kappa 1 at one request
# STUB my_cells = ...
# STUB my_plain = ...
# END SOLUTION

lab08.check_cells(my_cells, my_plain)

# %% [markdown]
# A dry run lists them, and says what they will take of time and memory. It measures nothing beyond a
# few passes that the estimate rests on.

# %%
main(["sweep", "cpu-5min", "--dry-run"])

# %% [markdown]
# ## The smallest sweep
#
# **Exercise 2.** Two concurrencies are the fewest that can show a crossing. Write a grid's `sweeps` with
# n-gram drafts, three a step, on the kind `copy`, at 1 and at 4 requests at once. The backend
# and the method are given.

# %%
GRID = """
name: lab08
tokens: 12
repeats: 2
prompts: 2
backends:
  specedu: {kind: specedu, model: smollm2-135m, dtype: float32}
methods:
  n-gram: {method: ngram, prompt_lookup_min: 2, prompt_lookup_max: 4}
"""

# BEGIN SOLUTION
SWEEPS = """
sweeps:
  - {kappa: [3], kind: [copy], concurrency: [1, 4]}
"""
# STUB SWEEPS = """
# STUB sweeps:
# STUB   - {kappa: [...], kind: [...], concurrency: [...]}
# STUB """
# END SOLUTION

lab08.check_grid(GRID + SWEEPS)

# %% [markdown]
# Each cell is written to `records.jsonl` when it ends: a sweep that is interrupted goes on from there
# when it is run again, in the same folder. Close what else keeps this machine busy.

# %%
import tempfile
from pathlib import Path

folder = Path(tempfile.mkdtemp(prefix="specedu-sweep-"))
(folder / "lab08.yaml").write_text(GRID + SWEEPS)
main(["sweep", str(folder / "lab08.yaml"), "--out", str(folder)])

# %% [markdown]
# ## Read the record
#
# A line is a cell: its settings, what it ran on, and a sample for each repeat. `rate` is tokens a second
# of all requests together, behind each one's first token.

# %%
import json

records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
for record in records:
    cell, samples = record["cell"], record["samples"]
    rates = ", ".join(f"{sample['rate']:.1f}" for sample in samples)
    print(f"{cell['method']:7} B = {cell['concurrency']:2}: {rates} tokens a second")
print(json.dumps(records[-1]["samples"][0], indent=1))

# %% [markdown]
# `acceptance` has the rates $r_i$, the share of verifies that accepted at least $i$ drafts, and the
# number of verifies behind them. Two repeats with different numbers of verifies do not weigh the same.
#
# **Exercise 3.** From a cell's samples compute the pooled $r_i$, $E = 1 + r_1 + \dots + r_\kappa$, and
# the fitted $\alpha$: the drafts accepted over the drafts tested. A draft is tested if all in front of
# it were accepted, so how many are tested a verify?

# %%


def acceptance(samples: list[dict]) -> tuple[list[float], float, float]:
    """Return the pooled rates, E, and the fitted alpha."""
    # BEGIN SOLUTION
    found = [sample["acceptance"] for sample in samples]
    verifies = sum(one["verifies"] for one in found)
    places = range(len(found[0]["rates"]))
    rates = [sum(one["verifies"] * one["rates"][i] for one in found) / verifies for i in places]
    return rates, 1 + sum(rates), sum(rates) / (1 + sum(rates[:-1]))
    # END SOLUTION


lab08.check_acceptance(acceptance, records)
drafting = [record for record in records if record["cell"]["method"] != "plain"]
for record in drafting:
    rates, tokens, alpha = acceptance(record["samples"])
    words = ", ".join(f"{rate:.2f}" for rate in rates)
    print(
        f"B = {record['cell']['concurrency']:2}: r = {words}; E = {tokens:.2f}, alpha {alpha:.2f}"
    )

# %% [markdown]
# Acceptance does not know the load: the two concurrencies serve the same prompts. Their $E$ differ all
# the same, since a group is timed until it has its tokens *together*, and requests that copy well run
# ahead. Over a dozen tokens a request that is much, over a hundred little. So where the speed-up seems
# to rise with the load, look at $E$ first; the load itself can only change what a step costs.
#
# **Exercise 4.** Compute the speed-up at each concurrency: the mean rate with drafts over the mean rate
# without.

# %%


def speedups(records: list[dict]) -> dict[int, float]:
    """Return the speed-up by concurrency."""
    # BEGIN SOLUTION
    means: dict[tuple[int, bool], float] = {}
    for record in records:
        cell, rates = record["cell"], [sample["rate"] for sample in record["samples"]]
        means[cell["concurrency"], cell["method"] == "plain"] = sum(rates) / len(rates)
    batches = sorted({batch for batch, _ in means})
    return {batch: means[batch, False] / means[batch, True] for batch in batches}
    # END SOLUTION


lab08.check_speedups(speedups, records)
gains = speedups(records)
print({batch: round(gain, 2) for batch, gain in gains.items()})

# %% [markdown]
# ## The crossing
#
# **Exercise 5.** Where does the speed-up cross 1? Take it to fall evenly with the *logarithm* of $B$
# between two neighbours, since concurrency is raised by factors. There need not be a crossing: say why.

# %%


def crossing(gains: dict[int, float]) -> tuple[float | None, str]:
    """Return where it falls below 1, or None, and ``crosses``, ``gains`` or ``loses``.

    ``gains``: still above 1 at the largest concurrency. ``loses``: below 1 from the smallest on.
    """
    # BEGIN SOLUTION
    batches = sorted(gains)
    if gains[batches[0]] <= 1:
        return None, "loses"
    for low, high in zip(batches, batches[1:], strict=False):
        if gains[high] < 1:
            share = (gains[low] - 1) / (gains[low] - gains[high])
            return low * (high / low) ** share, "crosses"
    return None, "gains"
    # END SOLUTION


lab08.check_crossing(crossing)
at, why = crossing(gains)
print(f"you guessed {my_guess}; measured: {why if at is None else f'crosses at {at:.1f}'}")

# %% [markdown]
# Two points and two repeats give a number without telling how good it is. The sweep's own verdict above
# draws the repeats anew many times, and puts in brackets where 90 % of the crossings lie. With few
# repeats, or a machine that does other things, the brackets are wide, and that is the finding.
#
# **If it loses from the start:** a verify of four positions costs more than $E$ plain steps here. Look
# at `parts` of a sample: forward, draft, verify and host seconds of a step. **If it still gains at the
# end:** the crossing lies higher, or the passes are not yet bound by arithmetic: raise concurrency.
#
# ## Measured beside predicted
#
# The fitted $\alpha$ and the parts of a step give a speed-up too. Where it is off, acceptance is not
# the one number that the formula takes it for.

# %%
from specedu.sweep.gains import lines
from specedu.sweep.recorder import Record

(line,) = lines(Record.of(json.dumps(record)) for record in records)
for point in line.points:
    predicted = "unknown" if point.predicted.gain is None else f"{point.predicted.gain:.2f}"
    print(f"B = {point.batch:2}: measured {point.gain}, predicted {predicted}")
print(f"the whole report: {folder / 'report.html'}")

# %% [markdown]
# ## The whole sweep
#
# On this machine, in a terminal:
#
# ```
# specedu sweep cpu-5min
# specedu sweep cpu
# ```
#
# On a host with an H100 the engines that serve are measured, each beside itself without drafts. The
# preset's own comment has the commands that start the servers; for vLLM they are
#
# ```
# vllm serve Qwen/Qwen3-8B --port 8000
# vllm serve Qwen/Qwen3-8B --port 8001 --speculative-config \
#   '{"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}'
# ```
#
# Copy the preset, leave out the backends that you do not serve, and tell first what it will take:
#
# ```
# python -c "from importlib.resources import files; \
#   print((files('specedu.sweep') / 'presets/h100.yaml').read_text())" > h100.yaml
# specedu sweep h100.yaml --dry-run --price 3
# specedu sweep h100.yaml --max-minutes 60
# specedu sweep h100.yaml --report-only
# ```
#
# `--price` is what the machine costs you an hour. Records of several machines make one report with
# `--with FILE`.
#
# ## What you have seen
#
# A crossing is not a property of a method. It belongs to a machine, a pair of models, a kind of text
# and a draft length, and its uncertainty is a part of it.
