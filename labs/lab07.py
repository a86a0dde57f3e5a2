# %% [markdown]
# # Lab 07: the cost model, and where speculation stops to pay
#
# *40 minutes · difficulty 3 of 5 · runs on a CPU*
#
# A verify is one pass over more positions. With few requests it costs hardly more than a plain step;
# with many it costs in proportion. You will write the model of that, let it predict on which side of
# 1 the speed-up lies at each load of this machine, and then measure.

# %%
from specedu.cli import main

main(["doctor"])

# %% [markdown]
# ## Predict first
#
# Llama-3-8B on an H100, a 1B draft, 3 drafts a step, 7 of 10 accepted. Up to how many requests at
# once is speculation faster than plain decoding?

# %%
# BEGIN SOLUTION
my_guess = 150
# STUB my_guess = ...  # a number of requests
# END SOLUTION

from specedu.labs import lab07

lab07.check_guess(my_guess)

# %% [markdown]
# ## The model
#
# Let a pass of $T$ positions cost $\max(1, T/T^*)$, in units of reading the weights once. Plain
# decoding of $B$ requests puts $B$ positions in a pass, a verify $B(\kappa+1)$, a draft pass $B$ at
# $c$ times the price. A step emits $E$ tokens a request.
#
# **Exercise 1.** Write the speed-up over plain decoding.

# %%


def step_cost(positions: float, T_star: float) -> float:
    return max(1.0, positions / T_star)


def speedup(batch: float, tokens: float, kappa: int, c: float, T_star: float) -> float:
    """Tokens a second over plain decoding's; ``tokens`` is E."""
    # BEGIN SOLUTION
    plain = step_cost(batch, T_star)
    spent = kappa * c * plain + step_cost(batch * (kappa + 1), T_star)
    return tokens * plain / spent
    # END SOLUTION


lab07.check_speedup(speedup)

# %% [markdown]
# **Exercise 2.** Find the number of requests at which the speed-up is 1, for any of its arguments.
# It never rises with the load, so that halving an interval finds it; where it is below 1 from the
# start, return 0. Then compare with your guess.

# %%


def crossing(tokens: float, kappa: int, c: float, T_star: float) -> float:
    # BEGIN SOLUTION
    low, high = 0.0, 2 * T_star
    if speedup(low, tokens, kappa, c, T_star) <= 1:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        inside = speedup(middle, tokens, kappa, c, T_star) > 1
        low, high = (middle, high) if inside else (low, middle)
    return low
    # END SOLUTION


lab07.check_crossing(crossing)
tokens = 1 + 0.7 + 0.7**2 + 0.7**3
print(f"you guessed {my_guess}, the model says {crossing(tokens, 3, 0.165, 295):.0f}")

# %% [markdown]
# ## This machine
#
# The real $t(T)$ is no pair of straight lines. Below, passes of SmolLM2 are timed: $B$ requests with
# one token each, and with four, behind 256 tokens of context.

# %%
from statistics import median

from specedu import LLM
from specedu.advise.pair import pass_seconds

llm = LLM("smollm2-135m")
BATCHES, KAPPA = (1, 4, 16), 3
plain, verify = (
    {batch: median(pass_seconds(llm, batch, width)) for batch in BATCHES}
    for width in (1, KAPPA + 1)
)
for batch in BATCHES:
    print(
        f"B = {batch:2}: plain {plain[batch] * 1e3:5.1f} ms, verify {verify[batch] * 1e3:5.1f} ms"
    )

# %% [markdown]
# **Exercise 3.** N-gram drafts cost next to nothing. Predict the speed-up at each load from these
# times and an $E$ that you choose for copying a text. Put your $E$ down before you measure it.

# %%
# BEGIN SOLUTION
my_tokens = 2.5
predicted = {batch: my_tokens * plain[batch] / verify[batch] for batch in BATCHES}
# STUB my_tokens = ...  # E, between 1 and 4
# STUB predicted = {batch: ... for batch in BATCHES}
# END SOLUTION

lab07.check_prediction(predicted, my_tokens, plain, verify)

# %% [markdown]
# ## Measure
#
# The same copy prompt is served to 1, 4 and 16 requests at once, plainly and with drafts, for a few
# dozen tokens behind the prompt.

# %%
from specedu import SamplingParams
from specedu.advise.pair import check
from specedu.prompts import KINDS

texts = KINDS["copy"] + KINDS["edit"]
prompts = [llm.tokenizer.chat([{"role": "user", "content": text}]) for text in texts]
drafts = {"method": "ngram", "num_speculative_tokens": KAPPA,
          "prompt_lookup_min": 2, "prompt_lookup_max": 4}  # fmt: skip
params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
measured = {batch: check(llm, drafts, prompts[: max(2, batch)], params, batch) for batch in BATCHES}
for batch in BATCHES:
    print(f"B = {batch:2}: predicted {predicted[batch]:.2f}, measured {measured[batch]:.2f}")

# %% [markdown]
# **Exercise 4.** Name the load at which speculation stops to pay here, by your prediction and by the
# measurement: the first $B$ with a speed-up of at most 1, or None.

# %%
# BEGIN SOLUTION
loses_predicted = next((batch for batch in BATCHES if predicted[batch] <= 1), None)
loses_measured = next((batch for batch in BATCHES if measured[batch] <= 1), None)
# STUB loses_predicted = ...
# STUB loses_measured = ...
# END SOLUTION

lab07.check_loads(loses_predicted, loses_measured, predicted, measured)

# %% [markdown]
# ## What you have seen
#
# The crossing is a property of the machine, the acceptance and the number of drafts. If yours lies
# elsewhere than predicted: which of the three was wrong, $E$, the cost of a verify, or what the
# model leaves out? Lab 08 sweeps the load and tells them apart.
