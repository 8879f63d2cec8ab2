# %% [markdown]
# # 18 · Agents: turns, tools and tokens that nobody sampled
#
# **Claim.** In an agent's episode only the tokens that the policy sampled have a ratio. Tools, chat templates and a
# second tokenisation put other tokens into the text. And with several turns or several versions of the weights in one
# episode, a weight or a rule must say whether it is about a token, a turn or the whole episode.
#
# *75 minutes · advanced · any laptop; no GPU, no network.* You need lesson 02 for products of ratios, lesson 06 for
# rules on whole answers, and lesson 13 for versions of the weights. All letters are listed in [Notation](NOTATION.md).
#
# At the end you can
#
# - say for every token of an episode whether it belongs in the mask, and show what happens if a tool's token is in it;
# - choose between a ratio per token, per turn and per episode, and say what each gives up;
# - recognise pairs that a second tokenisation or a chat template has broken;
# - handle an episode that several versions of the weights have written.

# %% tags=["hide-input"]
import itertools

import torch
from curves import curves, rows
from exercises.lesson_18 import FRESH, STILL_PAIRED, TURN_LOG_RATIO
from recorded import load
from sentences import say
from show import picture, show

from rlcorr import CorrectionConfig, RejectionRule, TokenBatch, correct
from rlcorr.analysis.segments import by_lag, by_turn, correct_per_turn, token_lags, without_older
from rlcorr.ratios import log_ratio, over_sequence, ratio
from rlcorr.records import runs
from rlcorr.teaching.check import check

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(18)

# %% [markdown]
# ## Warm-up
#
# Two questions on older lessons. Answer before you open a line.
#
# **1. (Lesson 02) The ratios of an answer's tokens are independent, and each has the same $\chi^2$. What happens to the
# effective sample size if the answers become twice as long?**
#
# <details><summary>It is halved.</summary>No. That would be a sum. Factors multiply.</details>
# <details><summary>It is squared: a share of 0.5 becomes 0.25.</summary>Yes. $(1 + \chi^2)^{-2T}$ is the square of
# $(1 + \chi^2)^{-T}$.</details>
#
# **2. (Lesson 13) A batch has answers of versions 3 and 5. By which probability do you divide that of the trainer?**
#
# <details><summary>For every token, by that of the version which sampled it.</summary>Yes. Then every ratio averages
# to 1.</details>
# <details><summary>By that of version 5, which is closest to the trainer.</summary>No. The tokens of version 3 were not
# drawn from it.</details>
#
# ## By hand: one episode
#
# An **agent** is a policy that acts several times before it is rewarded. It writes a **turn**, for example the call of
# a tool. The tool answers, and the policy writes its next turn. All turns together are an **episode**.
#
# By hand: the agent is asked for 17 · 23. It calls a calculator, and then it answers. These are the tokens after the
# prompt, with the probabilities that engine and trainer give to them:
#
# | token | who wrote it | turn | $q$ | $p$ |
# |---|---|---|---|---|
# | `mul(17,23)` | the policy | 0 | 0.5 | 0.6 |
# | `<end>` | the policy | 0 | 0.8 | 0.8 |
# | `tool:` | the template | – | – | 0.01 |
# | `391` | the tool | – | – | 0.02 |
# | `The answer is 391` | the policy | 1 | 0.4 | 0.3 |
# | `<end>` | the policy | 1 | 0.9 | 0.9 |
#
# The engine **read** the two tokens in the middle; it did not sample them, so it has no probability for them. Many
# programs put a 0 where a log-prob is missing, and a log-prob of 0 means a probability of 1. If these tokens are in the
# mask, they have the ratios 0.01 and 0.02.

# %%
p = torch.tensor([[0.6, 0.8, 0.01, 0.02, 0.3, 0.9]], dtype=torch.float64)
q = torch.tensor([[0.5, 0.8, 1.00, 1.00, 0.4, 0.9]], dtype=torch.float64)  # 1 where nothing was sampled
sampled = torch.tensor([[True, True, False, False, True, True]])
for name, mask in (("the policy's tokens", sampled), ("all tokens", torch.ones_like(sampled))):
    d = log_ratio(p.log(), q.log(), mask)
    show(name, "product", float(ratio(over_sequence(d, mask, "sum"))), "tokens", int(mask.sum()))

# %% [markdown]
# With the right mask the episode has the weight 1.2 · 1 · 0.75 · 1 = 0.9. With the tool's tokens in the mask the weight
# is near 0, and the loss has another denominator. Nothing crashes, but this episode hardly counts any more.
#
# ## The equation
#
# Is it allowed to leave the tool's tokens out, or is that an approximation? Under the trainer an episode
# $y$ has the probability
#
# $$ p(y) = \prod_{\text{turns}} \Big[ \prod_{t \,\in\, \text{turn}} p_t \Big] \cdot \Pr(\text{answer of the tool} \mid
# \text{everything before}) , $$
#
# and under the engine the same with $q_t$. The tool's factor does not depend on the policy. It is the same in both, so
# it cancels:
#
# $$ \frac{p(y)}{q(y)} = \prod_{t \,:\, \text{sampled}} \frac{p_t}{q_t} . $$
#
# So the mask is exact. It must contain **all** tokens that the policy sampled and no other. The `<end>` of a turn was
# sampled: it belongs into the mask. The line break and the header that the template puts after it were not.
#
# ## By hand: a ratio per turn
#
# The product over an episode is right on average, and noisy (lesson 02). A product per turn is shorter. What does it
# give up?
#
# By hand: in its first turn the agent searches or it does not. The engine searches with probability 0.5, the trainer
# with 0.9. In the second turn it answers. If it has searched, the answer is right with probability 0.8, else with 0.2,
# and here engine and trainer agree. The reward is 1 for a right answer.
#
# - The trainer's average reward is 0.9 · 0.8 + 0.1 · 0.2 = 0.74. The engine's is 0.5 · 0.8 + 0.5 · 0.2 = 0.5.
# - Draw episodes from the engine, and weight each by the product of its ratios over the **episode**. The average reward
#   is 0.5 · (0.9/0.5) · 0.8 + 0.5 · (0.1/0.5) · 0.2 = 0.74. This is right.
# - Weight each by the ratio of its **second turn** alone, which is 1. The average is 0.5, as for the engine. This is
#   wrong: what happens in the second turn is corrected, but how often the agent has searched before is not.
#
# A ratio per turn corrects what the policy does in a turn. It does not correct how often it gets into this situation.
# It is a compromise, as the ratio per token is (lesson 06): less noise for a bias.
#
# ## Predict, then reveal
#
# We have no recorded episodes. So we make some from recorded answers of a real model. We take the answers of
# `smol_bf16_both`, whose only fault is rounding, in a random order. Then we put neighbours together as the turns of one
# episode. The gap of every token is real, the conversation is not. The first rule keeps an episode if the product of
# its ratios is between one half and two. The second rule has the same bounds, but it looks at each turn alone, and
# keeps or rejects only this turn.
#
# **Write down a guess:** with one turn the rule keeps nearly everything. What share of the tokens is left of episodes
# with sixteen turns, if the rule is about the episode? And if it is about the turn?
#
# **Look for** the line that falls, and for the number of turns at which it is below four fifths.


# %% tags=["hide-input"]
def recorded_answers(name):
    """Return both log-probs of every recorded answer of a run, in a random order."""
    answers = []
    for n in range(len(runs.list_steps(runs.find_run(name)))):
        batch = load(name, n)
        pairs = zip(batch.tensors()["old_log_probs"], batch.rollout_log_probs, batch.response_mask, strict=True)
        answers += [(old[mask], rollout[mask]) for old, rollout, mask in pairs]
    return [answers[k] for k in torch.randperm(len(answers), generator=generator)]


def episodes(answers, turns):
    """Glue neighbours together: one row per episode, with the turn of every token."""
    rows = [answers[k : k + turns] for k in range(0, len(answers) - turns + 1, turns)]
    longest = max(sum(len(old) for old, _ in row) for row in rows)
    old, rollout = torch.zeros(2, len(rows), longest, dtype=torch.float64)
    turn_ids, mask = torch.zeros(len(rows), longest, dtype=torch.int32), torch.zeros(len(rows), longest)
    for k, row in enumerate(rows):
        size = sum(len(one) for one, _ in row)
        old[k, :size], rollout[k, :size] = (torch.cat(parts) for parts in zip(*row, strict=True))
        turn_ids[k, :size] = torch.cat([torch.full_like(one, turn) for turn, (one, _) in enumerate(row)]).int()
        mask[k, :size] = 1
    return TokenBatch.from_log_probs(old, rollout, mask).replace(turn_ids=turn_ids)


# %%
answers = recorded_answers("smol_bf16_both")
turn_counts = [1, 2, 4, 8, 16]
rule = RejectionRule("sequence", "k1", reduce="sum", lower=0.5, upper=2.0)
config = CorrectionConfig(rollout_rs=(rule,))
kept = {"rule on the episode": [], "rule on each turn": []}
for count in turn_counts:
    batch = episodes(answers, count)
    for name, result in zip(kept, (correct(batch, config), correct_per_turn(batch, config)), strict=True):
        kept[name].append(float(result.keep_mask.sum() / batch.response_mask.sum()))
picture(curves(turn_counts, kept, x_name="turns of an episode", y_name="share of the tokens that is kept", log="x"))


# %% tags=["hide-input"]
def effective_share(w):
    return float(w.sum() ** 2 / (len(w) * w.square().sum()))


long = episodes(answers, 16)
d = log_ratio(long.tensors()["old_log_probs"], long.rollout_log_probs, long.response_mask)
whole = effective_share(ratio(over_sequence(d, long.response_mask, "sum")))
one_turn = episodes(answers, 1)
d_of_turns = log_ratio(one_turn.tensors()["old_log_probs"], one_turn.rollout_log_probs, one_turn.response_mask)
single = effective_share(ratio(over_sequence(d_of_turns, one_turn.response_mask, "sum")))
show("effective sample size", "of 16 turns", whole, "of one turn", single, digits=2)
say(f"""
The rule on the episode keeps {kept["rule on the episode"][0]:.2f} of the tokens if an episode has one turn, and
{kept["rule on the episode"][-1]:.2f} if it has 16. The rule on each turn always keeps the same share, because its turns
are always the same answers. Nothing has become worse from turn to turn: **the same rounding is multiplied more often.**
(We drew one random order of the answers. It gives only {len(long.response_mask)} episodes of 16 turns, so the last
point is rough.)

Which of the two do you want? The bound on the episode limits how far the *whole* episode may be from the policy that is
trained. The bound on a turn limits this for one turn. It keeps more, and it leaves the bias that the search agent above
shows.
""")

# %% [markdown]
# In the library, `correct_per_turn` takes a batch with `turn_ids`, and `threshold --per-turn` chooses a bound for
# turns. `by_turn` measures the gap of each turn. Look at this before you choose a bound. If the gap is large only in
# the later turns, the cause is probably in the text before them: engine and trainer may have read different texts.
#
# ## The same text, other tokens
#
# Frameworks for agents pass on **text**: the engine decodes its tokens, the framework keeps a list of messages, and the
# trainer encodes the text again. A tokenizer has many ways to write a text, and encoding chooses one of them. The
# policy may have sampled another.
#
# By hand: a tokenizer has the tokens `3`, `9`, `1`, `39` and `391`. When it encodes a text, it always takes the longest
# token that fits. But the policy has written 391 as `39` and `1`.


# %%
def encode(text, vocabulary=("391", "39", "3", "9", "1")):
    """Return the tokens of a text: the longest that fits, from left to right."""
    tokens = []
    while text:
        tokens.append(next(token for token in vocabulary if text.startswith(token)))
        text = text[len(tokens[-1]) :]
    return tokens


sampled_tokens = ["39", "1"]
show("sampled", *sampled_tokens)
show("encoded again", *encode("".join(sampled_tokens)))

# %% [markdown]
# The engine has two log-probs, and the trainer has one token. The program now has no good choice. It can cut the longer
# list. Then all later pairs belong to different tokens (the shift of lesson 15). Or it can leave the answer out, and
# lose what it could teach.
#
# Is that rare? It happens if the policy writes two tokens that the tokenizer would join. Every recorded step of the
# real model has the texts of its tokens. So we can look for **suspects**: two neighbours whose texts together are the
# text of another token of the same run. Not every suspect changes. Whether a tokenizer joins two tokens depends on its
# rules. So we also asked the model's own tokenizer which answers become other tokens (`make bench ARGS=retokenised`,
# which needs the model). These are the bars of the picture. The two runs with `long` in their names have longer
# answers. **Look for** the difference that the length makes.


# %%
def suspects(name):
    """Return the number of answers with two neighbours that are one token elsewhere, and of all answers."""
    recorded = [runs.read_step(runs.find_run(name), step) for step in runs.list_steps(runs.find_run(name))]
    rows = [row for record in recorded for row in record.tokens or ()]
    texts = {text for row in rows for text in row}
    return sum(any(a + b in texts for a, b in itertools.pairwise(row)) for row in rows), len(rows)


# %% tags=["hide-input"]
CHECKED = {"smol_bf16_both": 12, "gpu_smol_bf16": 25, "smol_long": 114, "gpu_smol_long": 355}  # as the bench prints
changed = {}
for name, exactly in CHECKED.items():
    suspected, count = suspects(name)
    changed[name] = 100 * exactly / count
    show(name, f"{suspected} suspects", f"{exactly} changed", f"of {count:,}")
picture(rows(changed, x_name="% of the answers that become other tokens"))

# %% tags=["hide-input"]
token_rows = [row for step in runs.list_steps(runs.find_run("gpu_smol_long"))
              for row in runs.read_step(runs.find_run("gpu_smol_long"), step).tokens or ()]  # fmt: skip
texts = {text for row in token_rows for text in row}
pairs = [a + b for row in token_rows for a, b in itertools.pairwise(row) if a + b in texts]
breaks, tokens_each = pairs.count("\n\n"), sum(map(len, token_rows)) / len(token_rows)
say(f"""
**If their text is encoded again, {changed["gpu_smol_long"]:.0f} % of the answers of `gpu_smol_long` become other
tokens**. They have {tokens_each:.0f} tokens on average. Of the short answers of `smol_bf16_both`,
{changed["smol_bf16_both"]:.0f} % do. {100 * breaks / len(pairs):.0f} % of the suspect pairs of `gpu_smol_long` are two
line breaks that the policy wrote one by one.
""")

# %% [markdown]
# The remedy is called **token in, token out**: the token ids that were sampled are kept and passed on, and text is only
# for people. vLLM returns them if one asks for it
# ([`return_token_ids`](https://blog.vllm.ai/2025/10/22/agent-lightning.html), October 2025).
#
# ## Chat templates
#
# A **chat template** is a small program that writes a list of messages as one text, with marks for who is speaking:
#
# ```
# <|im_start|>user
# What is 17 · 23?<|im_end|>
# <|im_start|>assistant
# mul(17,23)<|im_end|>
# ```
#
# The policy samples `mul(17,23)` and `<|im_end|>`. The template adds the rest. Three faults are common:
#
# - **Another template.** Engine and trainer render the messages differently: a default system message on one side, or a
#   missing line break after `<|im_end|>` ([verl, issue 6501](https://github.com/verl-project/verl/issues/6501)). Then
#   the two score the same tokens after different texts. The gap is far larger than rounding, and largest at the
#   beginning of a turn.
# - **A template that forgets.** Templates of thinking models remove the reasoning of earlier turns when they render the
#   history ([verl, issue 6854](https://github.com/verl-project/verl/issues/6854)). Then the prompt of the second turn
#   does **not** contain the first turn as it was written. If the trainer has one row per episode, it scores the second
#   turn after a text that the engine has not seen. The right form is one row per turn, each with the prompt that the
#   engine had.
# - **The end of a turn.** If the mask leaves `<|im_end|>` out, nothing teaches the policy to stop.
#
# ## Several versions in one episode
#
# Episodes are long, and engines do not wait. In systems that update weights **in flight** the engine gets new weights
# while it writes (`--rollout.in-flight` in this library). Then one row has several versions: `policy_versions` is
# `(B, T)`.
#
# By hand: step 8 is scored by version 7. An episode of six tokens was written by the versions 4, 4, 5, 5, 7, 7. The
# lags of its tokens are 3, 3, 2, 2, 0, 0. If tokens more than 2 updates old are left out, four of six are kept.

# %%
versions, turns = torch.tensor([[4, 4, 5, 5, 7, 7]]), torch.tensor([[0, 0, 0, 1, 1, 1]])
old = torch.tensor([[0.9, 0.2, 0.6, 0.5, 0.7, 0.4]]).log()
rollout = torch.tensor([[0.5, 0.4, 0.5, 0.4, 0.7, 0.4]]).log()
episode = TokenBatch.from_log_probs(old, rollout, torch.ones(1, 6)).replace(policy_versions=versions, turn_ids=turns)
show("lag of every token", [int(lag) for lag in token_lags(episode, step=8)[0]])
for segment in by_lag(episode, step=8):
    show(f"lag {segment.number}: tokens, mean |d|", segment.tokens, segment.abs_log_ratio)
for segment in by_turn(episode):
    show(f"turn {segment.number}: tokens, mean |d|", segment.tokens, segment.abs_log_ratio)
show("kept if at most 2 updates old", [int(x) for x in without_older(episode, step=8, max_lag=2).response_mask[0]])

# %% [markdown]
# The product of all six ratios is still right on average, because every token was divided by the probability with which
# it was drawn (appendix of lesson 13). To leave old tokens out is a rejection like any other (lesson 07): it changes
# the distribution on which the policy is trained. And if whole old **answers** are left out, short answers are
# preferred, because a long answer has more time to become old.
#
# ## Exercise 1: the log-ratio of a turn
#
# *6 minutes.* `d` has the log-ratio of every token, `turns` the number of its turn, and `mask` is True on the tokens
# that the policy sampled; all are `(B, T)`. Return for every sampled token the sum of `d` over the sampled tokens of
# its turn, and 0 elsewhere.
#
# <details><summary>Hint 1</summary><code>turns[:, :, None] == turns[:, None, :]</code> is True where two tokens of a
# row are of the same turn.</details>
# <details><summary>Hint 2</summary>Set <code>d</code> to 0 outside of the mask before you add, and the result
# after.</details>


# %%
def turn_log_ratio(d, turns, mask):
    raise NotImplementedError("exercise 1: write turn_log_ratio, then run this cell and the next.")


# %% tags=["check"]
check(turn_log_ratio, TURN_LOG_RATIO)


# %% tags=["solution", "hide-input"]
def turn_log_ratio_solution(d, turns, mask):
    same_turn = (turns[:, :, None] == turns[:, None, :]).to(d)
    return (same_turn @ d.where(mask, 0)[..., None])[..., 0].where(mask, 0)


check(turn_log_ratio_solution, TURN_LOG_RATIO)

# %% [markdown]
# ## Exercise 2: which pairs survive?
#
# *6 minutes.* `sampled` and `encoded` are lists of token texts of the same text. Return a list that has True for every
# sampled token that is also a token of `encoded`: one that begins and ends at the same characters.
#
# <details><summary>Hint 1</summary>Compute for every token where it starts and where it ends.</details>
# <details><summary>Hint 2</summary>A set of pairs (start, end) answers "is this one in there?".</details>


# %%
def still_paired(sampled, encoded):
    raise NotImplementedError("exercise 2: write still_paired, then run this cell and the next.")


# %% tags=["check"]
check(still_paired, STILL_PAIRED)


# %% tags=["solution", "hide-input"]
def still_paired_solution(sampled, encoded):
    def spans(texts):
        ends = torch.tensor([0, *map(len, texts)]).cumsum(0).tolist()
        return list(itertools.pairwise(ends))

    other = set(spans(encoded))
    return [span in other for span in spans(sampled)]


check(still_paired_solution, STILL_PAIRED)

# %% [markdown]
# ## Exercise 3: fresh enough
#
# *4 minutes.* `versions` has the version that sampled each token, and `mask` is True on sampled tokens; both are
# `(B, T)`. Step `step` is scored by version `step - 1`. Return the mask of the sampled tokens that are at most
# `max_lag` updates old.
#
# <details><summary>Hint 1</summary>The lag of a token is the version that scores it minus the one that sampled
# it.</details>
# <details><summary>Hint 2</summary>Write down the lags of the episode above, and compare.</details>


# %%
def fresh(versions, mask, step, max_lag):
    raise NotImplementedError("exercise 3: write fresh, then run this cell and the next.")


# %% tags=["check"]
check(fresh, FRESH)


# %% tags=["solution", "hide-input"]
def fresh_solution(versions, mask, step, max_lag):
    return mask & (step - 1 - versions <= max_lag)


check(fresh_solution, FRESH)

# %% [markdown]
# ## Check yourself
#
# **1. The answer of a search engine has 2,000 tokens, the agent's turns have 300. Which tokens does the trainer
# compute, and which are in the mask?**
#
# <details><summary>It computes 300 and has 300 in the mask.</summary>No. The trainer must read the answer of the search
# engine, or it scores the next turn after another text than the engine did.</details>
# <details><summary>It computes all 2,300 and has 300 in the mask.</summary>Yes. The policy reads the other 2,000, and
# only its own tokens have a ratio and a gradient.</details>
# <details><summary>It computes all 2,300 and has all of them in the mask.</summary>No. That trains the policy to
# imitate a search engine, with ratios that mean nothing.</details>
#
# **2. Your run has healthy ratios in turn 0 and a mean |d| that is thirty times larger in turn 1. What do you check
# first?**
#
# <details><summary>The text before turn 1: the template, and the tokens between the turns.</summary>Yes. If engine and
# trainer had different texts there, all tokens after it differ, and those before do not.</details>
# <details><summary>The weights: the sync must have failed.</summary>No. Then turn 0 would differ as well.</details>
# <details><summary>Nothing: errors add up with length.</summary>No. The log of the product over tokens grows with the
# length. The mean |d| of a token hardly does.</details>
#
# **3. You weight every turn by the product of its own ratios. What is left uncorrected?**
#
# <details><summary>Nothing: each turn's product averages to 1.</summary>No. It does so, given the text before it. But
# this text was written by the engine, and the trainer would write it more or less often.</details>
# <details><summary>How often each situation is reached.</summary>Yes. The earlier turns decide that, and their ratios
# are not in the weight.</details>
# <details><summary>The tool's answers.</summary>No. They need no correction: the tool answers both policies in the same
# way.</details>
#
# ## In the app
#
# Start it with `make app`:
#
# - [the real model with long answers](http://localhost:8501/tokens?run=gpu_smol_long): read its tokens one by one, and
#   look for two line breaks in a row;
# - [weights six updates old](http://localhost:8501/mismatch?run=smol_stale_6): if a run has turns or several versions,
#   this page shows the gap by turn and by age;
# - [the rule on whole answers](http://localhost:8501/bench?run=smol_bf16_both&preset=decoupled_geo_rs).
#
# ## Pitfalls
#
# - **A log-prob of 0 for tokens that nobody sampled.** It says "probability 1". Use the mask, and nan where possible:
#   nan is noticed.
# - **The denominator.** If the loss divides by all tokens of an episode, an agent whose tools talk much learns slowly.
# - **One advantage for all turns.** Every turn gets the advantage of its whole episode, also a turn that did not help.
#   This adds noise to the gradient. It is no mismatch.
# - **A cap on the episode's product.** It limits long episodes more than short ones, so it prefers few turns.
# - **Text as the interface.** If a framework formats JSON anew, removes a blank or changes a quotation mark, other
#   tokens are the result, too.
#
# ## References
#
# 1. The Agent Lightning and vLLM teams, [No More Retokenization
#    Drift](https://blog.vllm.ai/2025/10/22/agent-lightning.html), 2025: why token ids must be passed on.
# 2. verl, [issue 6719](https://github.com/verl-project/verl/issues/6719), 2026: how the tokens of several turns are put
#    together, and four pitfalls.
# 3. ms-swift, [pull request 6803](https://github.com/modelscope/ms-swift/pull/6803): log-probs of every turn of an
#    episode.

# %% [markdown] jp-MarkdownHeadingCollapsed=true
# ## Appendix
#
# Further checks; nothing above needs them.

# %% [markdown]
# ### The search agent, enumerated
#
# The cell averages over all four episodes of the agent above: it searches or not, and the answer is right or wrong. It
# compares three weights for the second turn: none, the ratio of this turn, and the product of the episode. (Here the
# second turn is a single token, so its ratio is also the ratio of the token.)

# %%
search, right = torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])
first_q = torch.where(search == 1, 0.5, 0.5).double()
first_p = torch.where(search == 1, 0.9, 0.1).double()
answers_right = torch.where(search == 1, 0.8, 0.2).double()
second = torch.where(right == 1, answers_right, 1 - answers_right)  # the same for both policies
chance, reward = first_q * second, right.double()
truth = float((first_p * second * reward).sum())
for name, weight in (("no weight", torch.ones(4).double()), ("second turn", second / second),
                     ("episode", first_p / first_q)):  # fmt: skip
    mean = float((chance * weight * reward).sum())
    noise = float((chance * (weight * reward - mean).square()).sum()) ** 0.5
    show(name, "mean", mean, "noise of one draw", noise)
show("trainer's average", truth)
assert abs(float((chance * first_p / first_q * reward).sum()) - truth) < 1e-12

# %% [markdown]
# ### A turn's product averages to 1, whatever came before it
#
# We take three turns of one token each, from random policies over four tokens, and add up over all cases. Given the
# turns before, the mean ratio of each turn is 1. And if the turns do not depend on each other, $1 + \chi^2$ of the
# episode is the product of the factors $1 + \chi^2$ of its turns.

# %%
logits = torch.randn(3, 2, 4, dtype=torch.float64, generator=generator)  # turns, policies, tokens
policies = logits.softmax(-1)
factors = []
for turn, (trainer, rollout_policy) in enumerate(policies):
    r = trainer / rollout_policy
    factors.append(float((rollout_policy * r.square()).sum()))
    show(f"turn {turn}: mean ratio, 1 + χ²", float((rollout_policy * r).sum()), factors[-1])
    assert abs(float((rollout_policy * r).sum()) - 1) < 1e-12
triples = torch.cartesian_prod(*[torch.arange(4)] * 3)
chances = policies[torch.arange(3), 1, triples].prod(-1)
products = (policies[torch.arange(3), 0, triples] / policies[torch.arange(3), 1, triples]).prod(-1)
of_episode = float((chances * products.square()).sum())
show("episode: 1 + χ², product of the turns", of_episode, torch.tensor(factors).prod().item())
assert abs(of_episode - factors[0] * factors[1] * factors[2]) < 1e-9
