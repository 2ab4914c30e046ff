// Sentences: what a round did, and why. Numbers come from the coordinator; nothing is guessed here.

const EMPTY = {
  bypass: "No draft was asked for: at this load drafting is not expected to pay, so the model " +
    "decoded alone.",
  policy_off: "The policy is off: the model decodes alone, one token a round.",
  no_drafter: "No drafter serves this answer at the moment, so the model decoded alone.",
  distrusted: "The drafter's drafts are not trusted after what the checks found, so the model " +
    "decoded alone.",
  unknown_sequence: "The drafter does not know this answer yet, so there was no draft.",
  invalid: "What the drafter sent was no block. The round went on without a draft.",
  left_out: "The drafter's blocks were no use of late, so it is left out for a while, and the " +
    "model decoded alone.",
  last_token: "One token was left to say, and the model says that one itself.",
  late: "The drafter was late. The round did not wait any longer and went on without a draft.",
  drafter_late: "The drafter still owes an earlier reply, so it was not asked again.",
  drafter_busy: "The drafter has as many orders as it takes, so it was not asked again.",
  drafter_lost: "The drafter was lost. The round went on without a draft.",
  features_missing: "The drafter has not got all of the context yet, so there was no draft.",
  drafted_before: "A draft had been asked for at this very place before, and is not asked for " +
    "twice.",
  out_of_pages: "The verifier was short of memory for a draft, so the model decoded alone.",
  too_long: "The context is longer than the drafter was trained for, so the model decoded alone.",
};

const FATES = {
  accepted: "accepted",
  rejected: "rejected",
  forbidden: "not in the form",
  void: "behind it",
  unverified: "not verified",
  cut: "past the end",
};

export const fate = (name) => FATES[name] ?? name;

export const percent = (share) => `${Math.round(100 * share)} %`;

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

const tokens = (count) => (count === 1 ? "one token" : `${count} tokens`);

/** The least chance at which a drafted token is worth verifying; null without a price. */
export function bar(told) {
  if (told.price === null) return null;
  const first = told.slots.find((slot) => slot.survival > 0);
  if (!first || first.gain <= 0) return null;
  return (told.price * first.survival) / first.gain;
}

/** Why the prefix is as long as it is, and what became of it. */
export function explain(told) {
  if (!told.slots.length)
    return EMPTY[told.empty_because] ?? `There was no draft (${told.empty_because}).`;
  return `${chosen(told)} ${outcome(told)}`.trim();
}

function chosen(told) {
  const drafted = told.slots.length;
  const next = told.slots[told.prefix];
  const first = told.prefix === 1 ? "Only the first" : `The first ${told.prefix}`;
  const were = told.prefix === 1 ? "was" : "were";
  switch (told.why) {
    case "whole":
      if (drafted === 1) return "One token was drafted and verified.";
      return `${drafted === 2 ? "Both" : `All ${drafted}`} drafted tokens were worth verifying.`;
    case "room":
      return (
        `The answer had room for ${tokens(told.prefix + 1)}, so ${told.prefix} of ${drafted} ` +
        `drafted ones ${were} verified.`
      );
    case "fixed":
      return (
        (drafted === 1 ? "One token was" : `${drafted} tokens were`) +
        " drafted and verified, as the policy says."
      );
    case "threshold":
      return told.prefix
        ? `${first} of ${drafted} ${were} verified: the next one’s confidence, ` +
            `${percent(next.confidence)}, is below the policy’s threshold.`
        : "Nothing was verified: even the first token’s confidence, " +
            `${percent(next.confidence)}, is below the policy’s threshold.`;
  }
  const least = bar(told);
  const worth = () =>
    least >= 1 ? "none is worth its time" : `at least ${percent(least)} is worth its time`;
  const asked = least === null ? "" : `, and ${worth()}`;
  return told.prefix
    ? `${first} of ${drafted} ${were} verified: the next one had a ${percent(next.survival)} ` +
        `chance to be accepted${asked}.`
    : `Nothing of the draft was verified: its first token had a ${percent(next.survival)} ` +
        `chance${asked}.`;
}

function outcome(told) {
  if (!told.prefix) return "";
  if (told.accepted === told.prefix) return "The model agreed, and added a token of its own.";
  if (told.slots[told.accepted].fate === "forbidden")
    return "The draft left the form of the answer, so the model said its own token instead.";
  if (told.accepted === 0) return "The model disagreed at once and said its own token instead.";
  const agreed = told.accepted === 1 ? "the first" : `the first ${told.accepted}`;
  return `The model agreed with ${agreed}, then said its own token instead.`;
}

/** How many answers and tokens shared the pass. */
export function shared(told) {
  const others =
    told.sequences === 1
      ? "This answer was alone in the pass"
      : `${told.sequences} answers shared the pass`;
  return `${others}, of ${tokens(told.step_tokens)}.`;
}

const ENOUGH = 16; // tokens of an answer whose speed says something

/** Tokens a second of several runs of one length, by their total time; 0 of none. */
export const overall = (rates) =>
  rates.length ? rates.length / rates.reduce((sum, each) => sum + 1 / each, 0) : 0;

/**
 * What drafting brought to an answer. `ids`: the tokens of the plain one; rates in tokens a second,
 * two of each.
 */
export function verdict(answer, ids, drafts, plain) {
  if (Math.min(ids.length, answer.tokens.length) < ENOUGH)
    return `An answer of fewer than ${ENOUGH} tokens is too short to tell.`;
  const ratio = overall(drafts) / overall(plain);
  const speed =
    Math.min(...drafts) > Math.max(...plain)
      ? `Drafting paid: ${number(ratio, 2)} times as fast as plain decoding.`
      : Math.max(...drafts) < Math.min(...plain)
        ? `Drafting did not pay here: plain decoding was ${number(1 / ratio, 2)} times as fast.`
        : "No difference in speed that two runs of each could tell.";
  const why = answer.end.drafted ? "" : " Nothing was drafted: no gain was expected.";
  return `${speed}${why} ${likeness(answer, ids)}`;
}

function likeness(answer, ids) {
  const { temperature, rule } = answer.asked;
  const differs = answer.tokens.findIndex((token, place) => token.id !== ids[place]);
  if (differs < 0 && ids.length === answer.tokens.length) return "Both gave the same tokens.";
  if (temperature > 0 && rule !== "coupled")
    return `At temperature ${temperature} each run draws a text of its own.`;
  return `The texts differ from token ${1 + (differs < 0 ? answer.tokens.length : differs)} on.`;
}
