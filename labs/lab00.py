# %% [markdown]
# # Lab 00: set-up, and a first speculative generation
#
# *20 minutes · difficulty 1 of 5 · runs on a CPU*
#
# You will run a real language model with n-gram drafts, read the three numbers that tell whether
# speculation helped, and see for yourself that the text did not change. The settings are those of
# vLLM's example script for its n-gram method: 3 drafts a step, temperature 0, 256 tokens.
#
# First, what can run here. The model is fetched once, 93 MB.

# %%
from specedu.cli import main

main(["doctor"])

# %% [markdown]
# ## Predict first
#
# The prompt asks for a copy of a text that stands in it. N-gram drafts look up the last few tokens
# in the text so far and propose what followed there. How many tokens will a step emit on average?
# One is plain decoding, four is the most that three drafts allow.

# %%
# BEGIN SOLUTION
my_guess = 3.0
# STUB my_guess = ...  # a number
# END SOLUTION

from specedu.labs import lab00

lab00.check_guess(my_guess)

# %% [markdown]
# ## Generate
#
# The call is the one that vLLM's users know.

# %%
from specedu import LLM, SamplingParams
from specedu.prompts import first_of_each

prompt = first_of_each()["copy"]
drafts = {"method": "ngram", "num_speculative_tokens": 3,
          "prompt_lookup_min": 2, "prompt_lookup_max": 4}  # fmt: skip
llm = LLM("smollm2-135m", drafts, record=True)
params = SamplingParams(temperature=0, max_tokens=256, ignore_eos=True)
output = llm.chat([{"role": "user", "content": prompt}], params)
print(output.outputs[0].text)

# %% [markdown]
# ## The number to watch
#
# The engine keeps a record of each step's verify: which drafts it saw and how many it accepted.
# `accepted` below is that list, over all steps that had a draft. A step emits its accepted drafts
# and one more token.
#
# **Exercise 1.** Compute the mean acceptance length, the last token of each step included.

# %%
verifies = [verify for step in llm.engine.records for verify in step.verifies]
accepted = [verify.num_accepted for verify in verifies if verify.draft_token_ids]


def mean_acceptance_length(accepted: list[int]) -> float:
    # BEGIN SOLUTION
    return 1 + sum(accepted) / len(accepted)
    # STUB raise NotImplementedError("your turn")
    # END SOLUTION


lab00.check_length(mean_acceptance_length, accepted, output)
print(f"you guessed {my_guess}, the engine says {output.metrics.mean_acceptance_length:.2f}")

# %% [markdown]
# **Exercise 2.** The unconditional rate of place $i$ is the share of steps that accepted at least
# $i$ drafts; the conditional rate is the share among those that accepted $i - 1$. Compute both for
# the three places. One of the two must fall from place to place. Which, and why not the other?

# %%


def rates(accepted: list[int], kappa: int) -> tuple[list[float], list[float]]:
    """Return the unconditional and the conditional rates."""
    # BEGIN SOLUTION
    reached = [sum(n >= i for n in accepted) for i in range(kappa + 1)]
    unconditional = [count / len(accepted) for count in reached[1:]]
    conditional = [b / a if a else 0.0 for a, b in zip(reached, reached[1:], strict=False)]
    return unconditional, conditional
    # STUB raise NotImplementedError("your turn")
    # END SOLUTION


lab00.check_rates(rates, accepted, output)

# %% [markdown]
# ## Did the text change?
#
# **Exercise 3.** Generate the same text without speculation, and compare ids.

# %%
# BEGIN SOLUTION
plain = LLM(llm.model, tokenizer=llm.tokenizer)
expected = plain.chat([{"role": "user", "content": prompt}], params)
# STUB expected = ...  # what LLM(llm.model, tokenizer=llm.tokenizer), without drafts, gives
# END SOLUTION

lab00.check_sameness(output, expected)

# %% [markdown]
# ## Play
#
# Green tokens are accepted drafts, yellow ones replaced a refused draft, blue ones came without a
# draft at their place. Find the kind of prompt where nearly all is green, and one where more drafts
# only cost.

# %%
import ipywidgets
from IPython.display import HTML

from specedu import generate


def show(kind: str, kappa: int) -> HTML:
    drafting = LLM(llm.model, {**drafts, "num_speculative_tokens": kappa},
                   tokenizer=llm.tokenizer, record=True)  # fmt: skip
    short = SamplingParams(temperature=0, max_tokens=48)
    trace = generate.as_html(drafting, first_of_each()[kind], short)
    length = drafting.metrics.mean_acceptance_length
    return HTML(f"{trace}<p>mean acceptance length {length:.2f} of {kappa + 1}</p>")


ipywidgets.interactive(
    show,
    {"manual": True},
    kind=ipywidgets.Dropdown(options=list(first_of_each()), value="copy"),
    kappa=ipywidgets.IntSlider(3, 1, 8),
)

# %% [markdown]
# ## What you have seen
#
# A draft decides how many tokens a step emits, and never which. The number to watch is the mean
# acceptance length; what it is worth depends on what a verify and a draft cost, which is Lab 07.
