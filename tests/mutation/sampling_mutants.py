"""Bugs of sampling: truncation and its ties, keyed noise, penalties, log-probabilities, calibration
of confidence."""

from __future__ import annotations

from tests.mutation.mutant import caught_by, harmless, in_file

D, M = "tests/unit/decoding/", "tests/unit/model/"
SAMPLING = (f"{D}test_sampling.py",)
RACE = (f"{D}test_gumbel.py",)
SHAPING = (f"{D}test_shaping.py",)
CALIBRATION = (f"{M}test_calibration.py",)
TOLD = (f"{D}test_logprobs.py",)

MUTANTS = [
    *in_file(
        "dspark/decoding/sampling.py",
        *caught_by(
            SAMPLING,
            (
                "one tie too many is left in a nucleus",
                "inside &= ~equal | (equal.cumsum(dim=-1) <= room)",
                "inside &= ~equal | (equal.cumsum(dim=-1) <= room + 1)",
            ),
            (
                "ties of the last one kept are all kept",
                "over = inside.sum(dim=-1, keepdim=True) - kept",
                "over = 0 * kept",
            ),
            (
                "ties of the last one kept are all cut",
                "inside = probs >= least",
                "inside = (probs > least) | (kept == 1) & (probs >= least)",
            ),
            (
                "ties go to higher ids",
                "(equal.cumsum(dim=-1) <= room)",
                "(equal.flip(-1).cumsum(dim=-1).flip(-1) <= room)",
            ),
            (
                "a nucleus stops before it reaches its bound",
                "nucleus = torch.searchsorted(mass, bound) + 1",
                "nucleus = torch.searchsorted(mass, bound).clamp_(min=1)",
            ),
            (
                "a nucleus goes one on where it reaches its bound",
                "nucleus = torch.searchsorted(mass, bound) + 1",
                "nucleus = torch.searchsorted(mass, bound, right=True) + 1",
            ),
            (
                "a nucleus is that of the whole row, not of the top k",
                "columns.only_nucleus, _sums(probs), mass.gather(-1, kept - 1)\n",
                "columns.only_nucleus, _sums(probs), _sums(probs)\n",
            ),
            (
                "min-p cuts those that reach it",
                "first >= columns.min_p * first[:, :1]",
                "first > columns.min_p * first[:, :1]",
            ),
            ("rows of no numbers look outside themselves", "likely.clamp_(min=1)", "likely"),
            (
                "min-p is a probability of its own",
                "columns.min_p * first[:, :1]",
                "columns.min_p.expand(len(probs), 1)",
            ),
            (
                "a nucleus may be larger than what it is one of",
                "torch.minimum(nucleus, kept)",
                "nucleus",
            ),
            (
                "a cut is looked for among the largest alone",
                "bool(((kept == first.shape[-1]) & ~uncut).any())",
                "False",
            ),
            (
                "a nucleus of the largest is one of all",
                "        if most < vocab:  #",
                "        if not most:  #",
            ),
            (
                "a row without a top-k is cut as deep as the others",
                "if depths and min(depths) > 0 else 0",
                "if depths else 0",
            ),
            (
                "what is cut is not made up for",
                "return cut / torch.where(uncut, 1.0, _sums(cut))",
                "return cut",
            ),
            (
                "a draw on a boundary takes the token before it",
                "u.unsqueeze(-1) * mass[:, -1:], right=True)",
                "u.unsqueeze(-1) * mass[:, -1:], right=False)",
            ),
            (
                "a draw forgets that a mass need not be one",
                "torch.searchsorted(mass, u.unsqueeze(-1) * mass[:, -1:], right=True)",
                "torch.searchsorted(mass, u.unsqueeze(-1), right=True)",
            ),
            (
                "an impossible draw moves to what is impossible too",
                "after = torch.where(possible & (columns >= ids), columns, probs.shape[-1])",
                "after = torch.where(columns > ids, columns, probs.shape[-1])",
            ),
            (
                "greedy rows of a mixed cohort are sampled",
                "probs = torch.where(columns.greedy, _one_hot(best(logits), logits.shape[-1]), "
                "probs)",
                "pass",
            ),
            (
                "columns of one sequence stand for all of a cohort",
                "shapes[:1] if len(set(shapes)) == 1 else shapes",
                "shapes[:1] if len(set(shapes)) <= 2 else shapes",
            ),
            (
                "min-p does not tell sequences of a cohort apart",
                "shapes[:1] if len(set(shapes)) == 1 else shapes",
                "shapes[:1] if len({each[:3] for each in shapes}) == 1 else shapes",
            ),
            (
                "draft and target cut another top k",
                "(columns.top_k > 0) & (rank >= columns.top_k)",
                "(columns.top_k > 0) & (rank > columns.top_k)",
            ),
            (
                "of equal maxima the last is the largest",
                "return torch.as_tensor(rows.detach().numpy().argmax(axis=-1))",
                "return rows.shape[-1] - 1 - torch.as_tensor(rows.detach().numpy()[..., "
                "::-1].argmax(axis=-1))",
            ),
        ),
    ),
    *in_file(
        "dspark/decoding/drafting.py",
        (
            "slots of a draft share a coin",
            "return self._draw(ids, probs, self._coins[:, slot])",
            "return self._draw(ids, probs, self._coins[:, 0])",
            ("tests/unit/draft_service/test_sample_block.py", *RACE),
        ),
        *caught_by(
            RACE,
            (
                "slots of a raced draft share their noise",
                "times_of(self._raced_params, [first + slot for first in self._first], ids)",
                "times_of(self._raced_params, [first for first in self._first], ids)",
            ),
            (
                "ratio rows of a mixed cohort take each other's coins",
                "self._draw(ids[self._ratio], probs[self._ratio], self._coins[:, slot])",
                "self._draw(ids[self._ratio], probs[self._ratio], self._coins[:, slot].flip(0))",
            ),
            (
                "raced rows of a mixed cohort are drawn by others' noise",
                "self._raced_params = [all_params[row] for row in raced]",
                "self._raced_params = [all_params[raced[0]] for row in raced]",
            ),
        ),
    ),
    *in_file(
        "dspark/decoding/gumbel.py",
        (
            "noise forgets the seed's upper half",
            "(seeds & np.uint64(LOW), seeds >> np.uint64(32)))",
            "(seeds & np.uint64(LOW), seeds & np.uint64(0)))",
            RACE,
        ),
        (
            "a few tokens have the times of their neighbours",
            "lane = (tokens % np.uint64(_LANES)).astype(np.int64)",
            "lane = ((tokens + np.uint64(1)) % np.uint64(_LANES)).astype(np.int64)",
            RACE,
        ),
    ),
    *in_file(
        "dspark/decoding/shaping.py",
        *caught_by(
            SHAPING,
            (
                "the prompt's last token counts as said",
                "np.arange(len(tokens)) >= self.params.prompt_len",
                "np.arange(len(tokens)) >= self.params.prompt_len - 1",
            ),
            (
                "the answer's first token does not count as said",
                "np.arange(len(tokens)) >= self.params.prompt_len",
                "np.arange(len(tokens)) > self.params.prompt_len",
            ),
            (
                "an answer may end one token early",
                "early = np.arange(rows) + answered < params.min_tokens",
                "early = np.arange(rows) + answered < params.min_tokens - 1",
            ),
            (
                "an answer may end one token late only",
                "early = np.arange(rows) + answered < params.min_tokens",
                "early = np.arange(rows) + answered <= params.min_tokens",
            ),
            (
                "presence counts how often",
                ") * (count > 0)\n",
                ") * count\n",
            ),
            (
                "a repetition penalty rewards what is unlikely",
                "torch.where(values > 0, values / factor, values * factor)",
                "values / factor",
            ),
            (
                "a bias is added behind the penalties",
                "+ bias\n    values = torch.where(values > 0, values / factor, values * factor) - "
                "minus",
                "\n    values = torch.where(values > 0, values / factor, values * factor) - minus "
                "+ bias",
            ),
            (
                "a shorter sequence goes on counting",
                "        if len(tokens) < self.length:\n            self._start_over()\n",
                "",
            ),
            (
                "a token twice in a piece counts once",
                "np.bincount(place, answered).astype(np.int64)",
                "(np.bincount(place, answered) > 0).astype(np.int64)",
            ),
        ),
    ),
    *in_file(
        "dspark/decoding/logprobs.py",
        *caught_by(
            TOLD,
            (
                "log-probabilities are those of the token behind",
                "torch.tensor(next_ids, device=logs.device)",
                "torch.tensor([*next_ids[1:], 0], device=logs.device)",
            ),
            (
                "pieces of a long prompt are scored by the first one's rows",
                "_ranked(logits[first : first + ROWS], next_ids[first : first + ROWS], top)",
                "_ranked(logits[: len(next_ids[first : first + ROWS])], next_ids[first : first + "
                "ROWS], top)",
            ),
            (
                "a rank counts itself",
                "(1 + (logs > chosen).sum(-1))",
                "(1 + (logs >= chosen).sum(-1))",
            ),
        ),
    ),
    *in_file(
        "dspark/model/calibration.py",
        *caught_by(
            CALIBRATION,
            (
                "temperatures multiply",
                "wide / np.asarray(self.temperatures[:slots])",
                "wide * np.asarray(self.temperatures[:slots])",
            ),
            (
                "a short block is calibrated as the end of a long one",
                "wide / np.asarray(self.temperatures[:slots])",
                "wide / np.asarray(self.temperatures[-slots:])",
            ),
            (
                "offsets are left out",
                "return scaled + np.asarray(self.offsets[:slots]) if self.offsets else scaled",
                "return scaled",
            ),
            (
                "offsets of a short block are those of the end of a long one",
                "np.asarray(self.offsets[:slots])",
                "np.asarray(self.offsets[-slots:])",
            ),
            (
                "every rule has the first one's fit",
                "for name in (rule, *RULES):",
                "for name in RULES:",
            ),
            (
                "sampled requests have the greedy fit",
                "return self.rules[name].get(bucket)",
                'return self.rules[name].get("greedy")',
            ),
            (
                "a temperature of 0 is taken",
                'held.get("temperatures"), block_size, positive)\n',
                'held.get("temperatures"), block_size, finite)\n',
            ),
        ),
    ),
    *in_file(
        "draft_service/sample_block.py",
        *caught_by(
            ("tests/unit/draft_service/test_sample_block.py",),
            (
                "greedy and sampled requests change their calibrations",
                '("greedy" if params.greedy else "sampled", NAMES[params.rule])',
                '("sampled" if params.greedy else "greedy", NAMES[params.rule])',
            ),
            (
                "every rule is calibrated as the block rule",
                '("greedy" if params.greedy else "sampled", NAMES[params.rule])',
                '("greedy" if params.greedy else "sampled", "block")',
            ),
            (
                "a mixed cohort is calibrated as its first member",
                "if len(set(fits)) == 1:",
                "if len(set(fits)) >= 1:",
            ),
        ),
    ),
    harmless(
        "a logit of 0 is multiplied by its penalty where it is divided",
        "dspark/decoding/shaping.py",
        "torch.where(values > 0, values / factor, values * factor)",
        "torch.where(values >= 0, values / factor, values * factor)",
        "0 divided and 0 multiplied are both 0",
    ),
]
