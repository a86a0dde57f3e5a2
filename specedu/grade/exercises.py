"""Fix exercises: a file of the kernels in which something may be wrong, and the report of a user.

Each exercise is made from the real source by one planted fault (``faults``), so that it never falls
behind it. In some nothing is wrong: the report is, and the file must stay as it is. The name, the
title and the report do not tell which.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import properties as has
from .faults import FAULTS, Fault


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes:
        name: what it is called on the command line.
        title: one line for the list.
        fault: name of the planted fault; None where nothing is wrong.
        function: the public function that the report is about.
        symptom: what its user reports: what was run, and what was seen.
        points: what it is worth.
        minutes: how long it takes somebody who has read the chapter.
        difficulty: 1 to 5.
        hints: three, each saying more than the one before.
        post_mortem: what was wrong, why that biases the text, and where it happened in public.
        fails: the properties that the file as handed out fails, by name.
        module: the file that is handed out, where no fault names it.
    """

    name: str
    title: str
    fault: str | None
    function: str
    symptom: str
    points: int
    minutes: int
    difficulty: int
    hints: tuple[str, str, str]
    post_mortem: str
    fails: tuple[str, ...]
    module: str = ""

    @property
    def planted(self) -> Fault | None:
        """The fault itself, as ``FAULTS`` has it now; None where nothing is wrong."""
        return next((fault for fault in FAULTS if fault.name == self.fault), None)

    @property
    def source(self) -> str:
        """Name of the file of the kernels that is handed out."""
        return self.planted.file.removeprefix("kernels/") if self.planted else self.module

    @property
    def backend(self) -> str:
        """``"torch"``, or ``"triton"`` where the kernel is to be fixed."""
        return (self.planted.backend if self.planted else None) or "torch"

    @property
    def file(self) -> str:
        """Name of the file that the reader edits."""
        return self.name.replace("-", "_") + ".py"


def find(name: str) -> Exercise:
    """Return the exercise of that name; underscores may stand for hyphens.

    Raises:
        ValueError: there is none.

    Example:
        >>> find("rare_words").function
        'verify_chain'
    """
    for exercise in EXERCISES:
        if exercise.name == name.replace("_", "-"):
            return exercise
    names = ", ".join(exercise.name for exercise in EXERCISES)
    raise ValueError(f"exercise: {name!r}, expected one of {names}")


EXERCISES: tuple[Exercise, ...] = (
    # --- chain ------------------------------------------------------------------------------------
    Exercise(
        name="rare-words",
        title="A word comes far more often than the target says",
        fault="threshold-on-p",
        function="verify_chain",
        symptom="The target gives three ids 1/5, 1/2 and 3/10, the draft 3/5, 1/10 and 3/10. With "
        "one draft a step I count the first emitted token over a long run and find about 12, 79 "
        "and 9 of a hundred. Acceptance is poor too: 26 of a hundred drafts, where the two laws "
        "overlap by 60.",
        points=10, minutes=10, difficulty=1,
        hints=(
            "Both the acceptance and the text are off. Which of the rule's two halves decides how "
            "many drafts are kept?",
            "A draft that the draft model proposes less often than the target would must always be "
            "kept. Look at what the coin is compared with.",
            "The test is u·q(x) < p(x). Which of its three numbers is missing?",
        ),
        post_mortem="The coin was compared with p(x) alone. The ratio p(x)/q(x) is what makes up "
        "for how often x is proposed: without q an id is kept with q(x)·p(x) instead of "
        "min(p(x), q(x)), and the residual, which was made for the right share, fills the gap with "
        "the wrong ids. Deterministic drafts hide it, since there q(x) = 1. In "
        "vllm-project/vllm#16952 the ratio was damaged from the other side: q had been overwritten "
        "before the test read it.",
        fails=(has.TWO_IDS, has.THREE_IDS, has.STEPS, has.ENDS, has.CLOSE, has.PLACEHOLDERS),
    ),
    Exercise(
        name="second-chance",
        title="A word that was just refused comes back",
        fault="p-instead-of-residual",
        function="verify_chain",
        symptom="The target gives 1/5, 1/2 and 3/10, the draft 3/5, 1/10 and 3/10. The acceptance "
        "rate is 3/5, as it should be. The first token is not: I count about 28, 30 and 42 of a "
        "hundred. Everything is right where draft and target are the same model.",
        points=10, minutes=10, difficulty=1,
        hints=(
            "Acceptance is right, the text is not: the fault lies behind the refusal.",
            "Work out by hand what the first id gets from acceptance alone. It has all it should "
            "have; where does the rest come from?",
            "After a refusal the token must come from max(0, p - q). Follow which row of q the "
            "draw is told to subtract.",
        ),
        post_mortem="After a refusal the token was drawn from p. An id that the draft overrates "
        "has got its whole share by acceptance, so that it must get nothing more; the residual "
        "max(0, p - q) is zero there. A close relative happened in "
        "huggingface/transformers#28508, where the residual went through a softmax, which gives "
        "every forbidden id a little.",
        fails=(has.TWO_IDS, has.THREE_IDS, has.STEPS, has.ENDS, has.CLOSE, has.ODD,
               has.PLACEHOLDERS, has.LARGE),
    ),
    Exercise(
        name="close-call",
        title="Every part looks right alone, the sum does not",
        fault="reused-coin",
        function="verify_chain",
        symptom="Target 2/5, 2/5, 1/5, draft 1/10, 1/10, 4/5. The acceptance rate is right. The "
        "histogram of tokens after a refusal never holds what I expect: the first token comes out "
        "as 3/10, 1/2, 1/5. With two ids in the vocabulary I cannot make it fail.",
        points=15, minutes=20, difficulty=3,
        hints=(
            "A refusal says something about the coin that caused it.",
            "With two ids the residual has one id, and any coin draws it. With three it has two.",
            "Which coin draws the final token, and has it been looked at before?",
        ),
        post_mortem="The coin that had refused the draft also drew its replacement. Given a "
        "refusal it is not uniform any more: it is at least p(x)/q(x), so that the ids at the low "
        "end of the residual come too seldom. Two of the most used kernels had it: "
        "flashinfer-ai/flashinfer#424 and sgl-project/sglang#7207. Tests with two ids cannot see "
        "it, because there the residual has a single id.",
        fails=(has.THREE_IDS, has.CERTAIN, has.ENDS, has.ODD, has.PLACEHOLDERS, has.LARGE),
    ),
    Exercise(
        name="another-story",
        title="The text jumps after a refused word",
        fault="bonus-row-after-a-refusal",
        function="verify_chain",
        symptom="With three drafts a step the text now and then continues as if a word stood there "
        "that does not. It only happens in steps in which a draft is refused, and never where all "
        "of them are kept. Deterministic drafts do it too.",
        points=10, minutes=15, difficulty=2,
        hints=(
            "Each target row was computed given the drafts before it. Which rows are still true "
            "after a refusal?",
            "Row i was conditioned on i drafts. If i drafts were kept, which row speaks about the "
            "text as it now stands?",
            "Look at how the row of the final draw is counted: by how many drafts there were, or "
            "by how many were kept?",
        ),
        post_mortem="The final token was always drawn from the bonus row, which is conditioned on "
        "all the drafts, also on those that were thrown away. The row of the first refusal is the "
        "last one that speaks about a text that happened. openvinotoolkit/openvino.genai#4190 "
        "reports the same from outside: a refused word vanished and its continuation was printed.",
        fails=(has.TWO_IDS, has.THREE_IDS, has.CERTAIN, has.STEPS, has.ENDS, has.ODD, has.GREEDY),
    ),
    Exercise(
        name="same-guess",
        title="n-gram drafts are repeated too often",
        fault="one-hot-draft-not-masked",
        function="verify_chain",
        symptom="With prompt lookup the text repeats itself more than without. A drafted id to "
        "which the target gives 1/4 comes out 7 times of 16. With a draft model, which hands over "
        "its probabilities, everything is right.",
        points=10, minutes=15, difficulty=2,
        hints=(
            "A draft without probabilities is certain: q is 1 at the drafted id and 0 elsewhere.",
            "1/4 + 3/4 · 1/4 = 7/16. Which two ways to the id are added up here?",
            "max(0, p - q) with a one-hot q is p with one entry taken out. Where is it taken out?",
        ),
        post_mortem="A refused deterministic draft was left in the row from which its replacement "
        "is drawn. The residual of a one-hot q is p without the drafted id; drawing from the whole "
        "of p gives that id a second chance. In "
        "vllm-project/vllm-ascend#2881 the masking was there and came too early: it had emptied "
        "p(x) before the accept test read it.",
        fails=(has.CERTAIN,),
    ),
    Exercise(
        name="crowded-room",
        title="Right alone, wrong in company",
        fault="wrong-row",
        function="verify_chain",
        symptom="Every request of mine is right when it is verified alone. In a batch the first "
        "one still is, and the others are not: acceptance falls, and the texts look as if words of "
        "a neighbour had been considered. The kernel's version gives the right batch.",
        points=10, minutes=10, difficulty=2,
        hints=(
            "Request r owns one target row more than it has drafts.",
            "Count the rows that lie before the first row of request 1, and the drafts that lie "
            "before its first draft.",
            "The index of a draft and the index of its target row differ by the number of requests "
            "before it.",
        ),
        post_mortem="Drafts were tested against the row at their own index. The target's rows have "
        "one more a request, so that request r's lie r rows further on. In request 0 both are the "
        "same, which is why a test with a batch of one passes. vllm-project/vllm-ascend#16215 is a "
        "fault of the same bookkeeping, at the other end of the buffer.",
        fails=(has.BATCH, has.TWO_IDS, has.THREE_IDS, has.CERTAIN, has.STEPS, has.GREEDY,
               has.LARGE),
    ),
    Exercise(
        name="optimist",
        title="More tokens than were accepted",
        fault="accepts-counted-behind-a-refusal",
        function="verify_chain",
        symptom="The acceptance flags of one step were yes, no, yes, yes, and num_accepted was 3. "
        "The mean acceptance length looks wonderful, and the text follows the draft model. With "
        "one draft a step nothing is wrong.",
        points=10, minutes=10, difficulty=1,
        hints=(
            "With one draft a step there is nothing behind a refusal.",
            "Only the drafts before the first refusal stand, however well later ones would do.",
            "The length of the leading run of yes is the place of the first no. What is computed "
            "instead?",
        ),
        post_mortem="All accepted flags were added up, also those behind the first refusal. They "
        "were decided in a text that no longer exists. huggingface/transformers#28508 followed the "
        "draft that way; vllm-project/vllm#2658 and flashinfer-ai/flashinfer#450 had it in their "
        "counters.",
        fails=(has.THREE_IDS, has.CERTAIN, has.STEPS, has.PLACEHOLDERS, has.GREEDY),
    ),
    Exercise(
        name="blank",
        title="Tokens that do not exist",
        fault="placeholder-as-index",
        function="verify_chain",
        symptom="Since drafts are padded with -1 the detokenizer stops with 'id -1'. It is worst "
        "where the last id of the vocabulary is likely. The padded rows of q are zeros, as asked.",
        points=10, minutes=10, difficulty=1,
        hints=(
            "Which entry does Python give for row[-1]?",
            "A draft of -1 must be refused before anything is looked up for it.",
            "An id is legal between 0 and the size of the vocabulary. Both ends count.",
        ),
        post_mortem="-1 was taken for an id. Torch wraps it round to the last entry, so that the "
        "test ran on the last id's mass and, with q = 0, kept the draft. GDzhu01/"
        "vllm-ascend-deepseekv4#102 and vllm-project/vllm-ascend#8873 report both faces of it: "
        "host code wraps round, kernel code reads memory before the row.",
        fails=(has.PLACEHOLDERS,),
    ),
    Exercise(
        name="banned-word",
        title="Banning a word moves the others",
        fault="placeholder-drawn-from-p",
        function="verify_chain",
        symptom="The target gives 1/4, 3/4 and 0: id 2 is banned. The draft does not know that and "
        "samples from 1/2, 1/4, 1/4; where it proposes id 2, the scheduler puts -1 in its place "
        "and leaves the row of q. The first token comes out as 5/16 and 11/16.",
        points=15, minutes=20, difficulty=3,
        hints=(
            "The draft was drawn before it was withdrawn, and being drawn has a law.",
            "Compare with what happens if the draft stays and is refused because its p is 0.",
            "A withdrawn draft is a refused draft: its own row of q must be subtracted.",
        ),
        post_mortem="A withdrawn draft was replaced from p. That it was withdrawn says that id 2 "
        "had been drawn, and the steps in which id 0 or 1 was drawn have taken their shares "
        "already; what is left is max(0, p - q), as after any refusal. For a draft that never "
        "existed q is a row of zeros, and the same formula gives p. A filter that "
        "does not reach every row is a fault of its own: vllm-project/vllm#42744, where min-p "
        "worked for the bonus row alone.",
        fails=(has.PLACEHOLDERS,),
    ),
    Exercise(
        name="border-town",
        title="A replay differs at one coin",
        fault="border-takes-the-id-before",
        function="verify_chain",
        symptom="I replay steps with recorded coins on two implementations. They agree on a "
        "million coins and part at one: bonus row (1/4, 1/4, 1/2), final coin exactly 1/4. The "
        "other one emits id 1, mine emits id 0.",
        points=10, minutes=15, difficulty=2,
        hints=(
            "Coins lie in [0, 1): 0 can occur, 1 cannot.",
            "Id 0 owns the coins from 0 up to 1/4. Does 1/4 belong to it?",
            "The smallest id whose running sum is greater than the goal, not equal to it.",
        ),
        post_mortem="The running sum was allowed to equal the goal. Each id owns a half-open "
        "interval, closed below; with a comparison that includes the border it is closed above "
        "instead, and a coin of 0 can belong to an id without mass. No histogram shows it: a "
        "border has no volume. sgl-project/sglang#35771 repaired both ends in a kernel.",
        fails=(has.ENDS,),
    ),
    # --- chain, in Triton -------------------------------------------------------------------------
    Exercise(
        name="forbidden-word",
        title="A word without probability, once in a very long while",
        fault="inclusive-test-kernel",
        function="verify_chain",
        symptom="A grammar masks ids to probability 0, and after days of serving one of them was "
        "emitted. I could repeat it only by hand: draft with p(x) = 0, accept coin 0. The Triton "
        "kernel keeps the draft, the torch version does not. Padded drafts come out as -1, too.",
        points=10, minutes=15, difficulty=2,
        hints=(
            "How often is a 53-bit coin exactly 0?",
            "Put the numbers into the test: what is u·q(x) for u = 0, and what is p(x)?",
            "0 is not less than 0. Is it compared so?",
        ),
        post_mortem="The test included equality: 0 <= 0 keeps an id that the target cannot emit. "
        "Coins lie in [0, 1), so that the strict comparison is the right one: it keeps nothing at "
        "p(x) = 0 and everything at p(x) = q(x). sgl-project/sglang#35771 is the public case.",
        fails=(has.ENDS, has.PLACEHOLDERS),
    ),
    Exercise(
        name="empty-handed",
        title="Id 0 appears where the two models agree",
        fault="no-fallback-to-p-kernel",
        function="verify_chain",
        symptom="With 16-bit probabilities the drafts' rows sometimes sum to a little more than "
        "the target's. In such places my text has id 0 in it, which the target gives 1/4 there and "
        "not always. The Triton kernel does it, the torch version draws properly.",
        points=15, minutes=20, difficulty=3,
        hints=(
            "Try p = (1/4, 3/4) with a stored q of (1, 1), and a coin that refuses the draft.",
            "max(0, p - q) can have no mass at all once numbers are rounded. What does an inverse "
            "CDF over nothing return?",
            "There is a branch for this. When is it taken?",
        ),
        post_mortem="Where rounding leaves nothing of p - q the draw must fall back to the p row; "
        "the branch was there and could not be taken, since a sum of masses is never below 0. In "
        "exact arithmetic the case does not exist, which is why proofs do not mention it. "
        "duoan/TorchCode#16 and the review of vllm-project/vllm#2336 discuss what to do.",
        fails=(has.ODD,),
    ),
    # --- greedy, match ----------------------------------------------------------------------------
    Exercise(
        name="eager",
        title="All drafts are accepted at temperature 0",
        fault="every-draft-is-the-argmax-kernel",
        function="verify_greedy",
        symptom="At temperature 0 the metrics show an acceptance of 100 % whatever the draft model "
        "is, and the text is not that of greedy decoding. Argmax rows 1, 5, 3, 4 and drafts 1, 2, "
        "3 give four tokens. With the torch version they give two.",
        points=10, minutes=10, difficulty=1,
        hints=(
            "The ids that are emitted are each row's argmax. Which rows may be read?",
            "Row 2 is conditioned on draft 1. What if draft 1 was not the argmax of row 1?",
            "A draft is kept if it is an id and equals its row's argmax.",
        ),
        post_mortem="Only the sign of the draft was tested, not whether it is the argmax: the walk "
        "went on through rows that were conditioned on refused drafts. Counts that run on behind "
        "the first refusal are reported in vllm-project/vllm#2658 and #10604 and in "
        "flashinfer-ai/flashinfer#450.",
        fails=(has.THREE_IDS, has.PLACEHOLDERS, has.GREEDY, has.LARGE),
    ),
    Exercise(
        name="mood-swings",
        title="Texts that are all high or all low",
        fault="one-coin-for-every-row",
        function="verify_match",
        symptom="With sample-and-match the first token of every step has the right histogram. "
        "Pairs have not: where two "
        "tokens come out of one step, a low id follows a low id far too often. With one token a "
        "step, drafts switched off, it is gone.",
        points=10, minutes=15, difficulty=2,
        hints=(
            "Right one by one and wrong together: the tokens of a step are not independent.",
            "What makes two draws independent here?",
            "Each row has a coin of its own. Which index are the coins read at?",
        ),
        post_mortem="All rows of a request drew with the coin of its first row. The first token "
        "has the right law, and those behind it depend on it. In "
        "vllm-project/vllm#47386 two other draws shared their noise, the draft and its recovery, "
        "and the text leaned towards the draft.",
        fails=(has.TWO_IDS, has.THREE_IDS, has.TEXT, has.STEPS, has.PLACEHOLDERS),
    ),
    # --- block ------------------------------------------------------------------------------------
    Exercise(
        name="lucky-run",
        title="Block verification is right for one draft and wrong for two",
        fault="block-scale-forgotten",
        function="verify_block",
        symptom="With block verification and one draft a step the law is the target's. With two it "
        "is not, and the error is in the token behind a run that was cut after its first draft. "
        "How many drafts are kept is right.",
        points=20, minutes=30, difficulty=4,
        hints=(
            "A run that stands with r < 1 was lucky. The residual behind it knows that.",
            "The final token comes from max(0, r·p - q). Follow r from where it is computed to "
            "where the row is multiplied.",
            "The scale of a request is the r at the first draft that does not stand.",
        ),
        post_mortem="The residual behind a run was not scaled by how far p had fallen behind q on "
        "the way. With r = 1 the two are the same, which is always so at the first draft; behind a "
        "lucky run too much is drawn from p. The rule is Sun et al., arXiv:2403.10444, algorithm "
        "2; in vllm-project/vllm-ascend#7807 the residual of the chain rule was used in its place.",
        fails=(has.THREE_IDS,),
    ),
    Exercise(
        name="too-good",
        title="Acceptance better than ever",
        fault="block-product-of-coins-kernel",
        function="verify_block",
        symptom="Somebody sped up our Triton kernel of block verification and its acceptance rose "
        "with it, beyond what the paper promises. Quality scores fell a little. The law of a "
        "single draft is off already.",
        points=15, minutes=20, difficulty=3,
        hints=(
            "If more drafts are kept than the sum of min(p, q) allows, the law cannot be right.",
            "With one draft block verification is the ratio test. What is compared with h?",
            "A product of two uniform coins is not uniform: it is small too often.",
        ),
        post_mortem="The acceptance test used a product of coins. Every run is decided by the coin "
        "of its own last draft; the product is smaller than either factor, so that more is kept "
        "than the law allows and the text leans towards the draft. vllm-project/vllm-ascend has "
        "compared so in its block rule (at 182b75ea).",
        fails=(has.TWO_IDS, has.THREE_IDS, has.CERTAIN, has.ENDS, has.CLOSE,
               has.PLACEHOLDERS),
    ),
    # --- rules that give the law up ---------------------------------------------------------------
    Exercise(
        name="loosened",
        title="A looser setting accepts less",
        fault="threshold-on-the-wrong-side",
        function="verify_threshold",
        symptom="accept_threshold_acc is there to trade exactness for speed: below 1 more drafts "
        "should be kept. Here 0.5 keeps fewer than 1.0 does. At 1.0 everything is as it should be.",
        points=10, minutes=10, difficulty=1,
        hints=(
            "Write the test down for acc = 1, then for acc = 1/2.",
            "Acceptance is to be raised by 1/acc: min(1, p / (q·acc)).",
            "On which side of the comparison does a factor below 1 make it easier to pass?",
        ),
        post_mortem="The threshold stood on the side of p, where a factor below 1 makes the test "
        "harder. It is meant to raise every acceptance by its inverse; "
        "sgl-project/sglang has it as "
        "speculative_accept_threshold_acc. At 1 both readings are the same rule, so that a "
        "test of the default passes.",
        fails=(has.THRESHOLD,),
    ),
    Exercise(
        name="by-decree",
        title="A benchmark stops at an id of -1",
        fault="synthetic-accepts-placeholders-kernel",
        function="verify_synthetic",
        symptom="To time the engine at a given acceptance I let drafts be kept by a coin alone. "
        "With requests that drafted less than the others, padded with -1, the Triton kernel hands "
        "on tokens of -1. The torch version does not.",
        points=10, minutes=10, difficulty=2,
        hints=(
            "Acceptance by decree does not look at p or q. What must it still look at?",
            "A place without a draft cannot be accepted, at any rate.",
            "The kernel knows already whether the draft is an id.",
        ),
        post_mortem="The kernel kept whatever the coin allowed, also a place in which nothing was "
        "drafted. In the other rules p = 0 refuses it anyway; here nothing else looks at the id. "
        "vllm-project/vllm-ascend#8873 is one of the reports in which -1 was taken for a draft.",
        fails=(has.PLACEHOLDERS,),
    ),
    # --- the report may be wrong ------------------------------------------------------------------
    Exercise(
        name="fair-coin",
        title="A draft is refused although its coin meets the ratio",
        fault=None,
        module="ratio.py",
        function="verify_chain",
        symptom="p(x) = 1/4, q(x) = 1/2, and the coin is exactly 1/2. The paper accepts with "
        "probability min(1, p/q) = 1/2, and my coin is not above that, so the draft should be "
        "kept. It is refused. The comparison in ratio.py looks too strict to me.",
        points=10, minutes=15, difficulty=2,
        hints=(
            "Count the coins k/8 with k = 0..7 that keep the draft. Which share of them is it?",
            "What would the other comparison do with p(x) = 0 and a coin of 0?",
            "Check the file as it is before you change it.",
        ),
        post_mortem="Nothing was wrong. Coins lie in [0, 1), so that exactly the coins below 1/2 "
        "make a probability of 1/2; of k/8 these are four of eight. With equality a fifth would be "
        "kept, and a coin of 0 would keep a draft to which the target gives nothing, which is the "
        "fault of sgl-project/sglang#35771.",
        fails=(),
    ),
    Exercise(
        name="long-shot",
        title="A refused draft is kept after all",
        fault=None,
        module="block.py",
        function="verify_block",
        symptom="In block.py a draft whose own coin fails can still be kept: with p = (1/4, 3/4) "
        "then (3/4, 1/4), q the other way round, drafts 0, 0 and coins 0.9 and 0.9 both stand. The "
        "code goes on after a coin that fails. It should stop there, as the chain rule does.",
        points=10, minutes=20, difficulty=3,
        hints=(
            "Compute r and h of both runs by hand.",
            "The rule asks which run may stand, not which draft. A longer one can do better than a "
            "shorter one.",
            "Check the file as it is, then change it as the report asks and check that.",
        ),
        post_mortem="Nothing was wrong. Block verification keeps the longest run whose own coin "
        "passes; h is made so that the law is right only if a later coin can save an earlier "
        "draft. Stopping at the first coin that fails is another, biased rule. A reviewer of "
        "vllm-project/vllm-ascend#11985 asked for just that.",
        fails=(),
    ),
    Exercise(
        name="no-ratio",
        title="A rule that never looks at q",
        fault=None,
        module="match.py",
        function="verify_match",
        symptom="match.py samples from the target and keeps the draft if it is the same id. It "
        "never divides by q and keeps far fewer drafts than the ratio test: 0.29 where the two "
        "laws overlap by 0.7. A rule that ignores q cannot be exact, so the text must be biased. "
        "Drafts of -1 are not even tested for.",
        points=10, minutes=15, difficulty=2,
        hints=(
            "What is emitted at a row if the draft equals the sample, and what if it does not?",
            "In both cases it is the sample. What is its law?",
            "Which id that a row can draw equals -1?",
        ),
        post_mortem="Nothing was wrong. The emitted token is the target's own sample whether the "
        "draft equals it or not, so that its law is p whatever was drafted; only the number of "
        "kept drafts, the sum of p·q, is smaller. A -1 equals no sample and is refused by itself. "
        "ml-explore/mlx-swift-lm#459 reported the rule as biased; lablup/mlxcel#992 measures what "
        "it really costs.",
        fails=(),
    ),
)  # fmt: skip
