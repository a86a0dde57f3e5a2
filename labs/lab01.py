# %% [markdown]
# # Lab 01: the exact law of an acceptance rule
#
# *35 minutes · difficulty 2 of 5 · runs on a CPU*
#
# Whether a rule keeps the target's law is no matter of sampling many times: over small
# vocabularies the law of everything that a step emits can be computed, as fractions. You will write
# the rule in plain Python, let the exact law judge it, break it on purpose, and then judge the rule
# that ships in transformers.

# %%
from specedu.cli import main

main(["doctor"])

# %% [markdown]
# ## Predict first
#
# The target's law is $p = (3/8, 3/8, 1/4)$, the draft's $q = (1/8, 1/8, 3/4)$. A draft is drawn from
# $q$ and accepted with probability $\min(1, p(x)/q(x))$. How often?

# %%
from fractions import Fraction

from specedu.labs import lab01

p = (Fraction(3, 8), Fraction(3, 8), Fraction(1, 4))
q = (Fraction(1, 8), Fraction(1, 8), Fraction(3, 4))

# BEGIN SOLUTION
my_rate = Fraction(1, 2)
# STUB my_rate = ...  # a Fraction
# END SOLUTION

lab01.check_rate(my_rate, p, q)

# %% [markdown]
# **Exercise 1.** After a refusal the token is drawn from the residual: the positive part of $p - q$,
# normalised. Write it for any two laws.

# %%
Law = tuple[Fraction, ...]


def residual(p: Law, q: Law) -> Law:
    # BEGIN SOLUTION
    left = [max(Fraction(0), a - b) for a, b in zip(p, q, strict=True)]
    return tuple(mass / sum(left) for mass in left)
    # END SOLUTION


lab01.check_residual(residual)

# %% [markdown]
# **Exercise 2.** Write the rule for one request. `drafts[i]` was drawn from `qs[i]`; `ps` has one
# row more than `qs`. Accept draft $x$ where $u\,q(x) < p(x)$; after the first refusal, or after all
# drafts, one final token is drawn. `sample(weights, coin)` draws from weights that need not add up
# to one. The check computes the joint law of your rule, for laws that turn from place to place.

# %%
from specedu.theory.reference import sample


def verify(
    ps: list[Law], qs: list[Law], drafts: list[int], accept_coins: list[Fraction],
    final_coin: Fraction,
) -> list[int]:  # fmt: skip
    """Return the emitted run."""
    # BEGIN SOLUTION
    run = []
    for p, q, x, u in zip(ps, qs, drafts, accept_coins, strict=False):
        if u * q[x] >= p[x]:
            return [*run, sample(residual(p, q), final_coin)]
        run.append(x)
    return [*run, sample(ps[-1], final_coin)]
    # END SOLUTION


lab01.check_rule(verify)

# %% [markdown]
# ## Break it
#
# **Exercise 3.** Here are four changes. Put down, before you run the cell below, which of them change
# the law of the emitted run.
#
# - `p-after-refusal`: the final token after a refusal comes from $p$, not from the residual
# - `one-coin`: all drafts of a step are tested with the first one's coin
# - `not-strict`: a draft is accepted where $u\,q(x) \le p(x)$
# - `no-bonus`: after all drafts were accepted nothing more is drawn, where $\kappa = 1$
#
# `no-bonus` emits one token less. Is what it does emit drawn from the target's law?

# %%
# BEGIN SOLUTION
changes_the_law = {
    "p-after-refusal": True,
    "one-coin": True,
    "not-strict": False,
    "no-bonus": False,
}
# STUB changes_the_law = {
# STUB     "p-after-refusal": ...,  # True or False
# STUB     "one-coin": ...,
# STUB     "not-strict": ...,
# STUB     "no-bonus": ...,
# STUB }
# END SOLUTION

lab01.check_changes(changes_the_law)

# %% [markdown]
# ## A rule that ships
#
# transformers has the rule in `_speculative_sampling`. `specedu.theory.adapters` hands it our coins
# in place of its random numbers, so that the same law can be computed. The report below is what
# `specedu law specedu.theory.adapters:transformers_rule` prints: the law, and then the ends of the
# coins' interval, which no law can see since they have no volume.

# %%
main(["law", "specedu.theory.adapters:transformers_rule", "--vocab", "2", "--kappa", "1", "2"])

# %% [markdown]
# **Exercise 4.** The report names a hole: at one coin an id without probability is emitted. Give a
# request that shows it: laws with a zero, a draft, a coin. Then say how often that coin comes up
# when it is drawn by `torch.rand` in float32, which gives multiples of $2^{-24}$.

# %%
# BEGIN SOLUTION
hole = {"p": (0.0, 0.5, 0.5), "q": (0.5, 0.25, 0.25), "draft": 0, "u": 0.0}
how_often = 2**-24
# STUB hole = {"p": ..., "q": ..., "draft": ..., "u": ...}
# STUB how_often = ...
# END SOLUTION

lab01.check_hole(hole, how_often)

# %% [markdown]
# **Exercise 5.** transformers has a knob, `assistant_ensemble_weight`, that mixes the draft's law
# into the target's before the test. `transformers_ensemble` sets it to one half. Predict whether the
# emitted first token still has the law $p$, then compute by how much it does not.

# %%
from specedu.theory.adapters import transformers_ensemble
from specedu.theory.exact import joint_law
from specedu.theory.settings import fixed

# BEGIN SOLUTION
law = joint_law(transformers_ensemble, fixed(p, q, 1))
total_variation = law.total_variation
# STUB total_variation = ...  # of joint_law(rule, fixed(p, q, 1))
# END SOLUTION

lab01.check_ensemble(total_variation, p, q)

# %% [markdown]
# ## Point it at your own
#
# Any function with the arguments of `specedu.kernels.verify_chain` can be asked, on any device:
# `specedu law MODULE:FUNCTION --device cuda`. A rule for one request in plain Python goes through
# `specedu.theory.adapters.by_request`, as yours did here.
#
# ## What you have seen
#
# A rule is right when the law of its run is the target's, as fractions, and its endpoints are. The
# first does not follow from the second, nor the second from the first.
