// Sentences: what a round did, and why. Numbers come from the coordinator; nothing is guessed here.

const EMPTY = {
  bypass: "No draft was asked for: at this load drafting is not expected to pay, so the target goes on alone.",
  policy_off: "The policy is off: the target decodes alone, one token a round.",
  no_drafter: "No drafter serves this sequence at the moment, so the target goes on alone.",
  last_token: "One token was left to say, and the target says that one itself.",
  late: "The drafter was late. The round did not wait any longer and went on without a draft.",
  drafter_late: "The drafter still owes an earlier reply, so it was not asked again.",
  drafter_lost: "The drafter was lost. The round went on without a draft.",
  opening: "A drafter is making room for this sequence; meanwhile the target goes on alone.",
  opened: "A drafter has room and waits for the context; meanwhile the target goes on alone.",
  resending: "The context is on its way to a drafter; meanwhile the target goes on alone.",
  resting: "This sequence rests from drafting: its drafts did not pay lately.",
  features_missing: "The drafter has not got all of the context yet, so its block was empty.",
  too_long: "The sequence is longer than the drafter was trained for, so the target goes on alone.",
};

const FATES = {
  accepted: "accepted",
  rejected: "rejected",
  void: "behind it",
  unverified: "not verified",
  cut: "past the end",
};

export const fate = (name) => FATES[name] ?? name;

export const percent = (share) => `${Math.round(100 * share)} %`;

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

const tokens = (count) => (count === 1 ? "one token" : `${count} tokens`);

/** Survival a slot has to have to be worth its place; null where nothing was weighed. */
export function bar(told) {
  if (told.price === null) return null;
  const first = told.slots.find((slot) => slot.survival > 0);
  if (!first || first.gain <= 0) return null;
  return (told.price * first.survival) / first.gain;
}

/** Why the prefix is as long as it is, and what became of it. */
export function explain(told) {
  if (!told.slots.length) return EMPTY[told.empty_because] ?? `There was no draft (${told.empty_because}).`;
  return `${chosen(told)} ${outcome(told)}`.trim();
}

function chosen(told) {
  const drafted = told.slots.length;
  const next = told.slots[told.prefix];
  const first = told.prefix === 1 ? "Only the first" : `The first ${told.prefix}`;
  const were = told.prefix === 1 ? "was" : "were";
  switch (told.why) {
    case "whole":
      return drafted === 1 ? "One token was drafted and verified." : `All ${drafted} drafted tokens were worth verifying.`;
    case "room":
      return `The answer had room for ${tokens(told.prefix + 1)}, so ${told.prefix} of ${drafted} drafted ones ${were} verified.`;
    case "fixed":
      return `${drafted === 1 ? "One token was" : `${drafted} tokens were`} drafted and verified, as the policy says.`;
    case "threshold":
      return told.prefix
        ? `${first} of ${drafted} ${were} verified: the next one’s confidence, ${percent(next.confidence)}, is below the policy’s threshold.`
        : `Nothing was verified: even the first token’s confidence, ${percent(next.confidence)}, is below the policy’s threshold.`;
    case "budget":
      return `A budget of ${told.cohort.budget ?? told.cohort.verified} slots for the whole step was settled before the draft; ${told.prefix} of ${drafted} fell to this sequence.`;
  }
  const least = bar(told);
  const asked = least === null ? "" : `, and a slot has to promise ${least >= 1 ? "more than any can" : percent(least)} to be worth its time`;
  return told.prefix
    ? `${first} of ${drafted} ${were} verified: the next one had a ${percent(next.survival)} chance to be reached and kept${asked}.`
    : `Nothing of the draft was verified: its first token had a ${percent(next.survival)} chance${asked}.`;
}

function outcome(told) {
  if (!told.prefix) return "";
  if (told.accepted === told.prefix) return "The target agreed, and added a token of its own.";
  if (told.accepted === 0) return "The target disagreed at once and said its own token instead.";
  return `The target agreed with ${told.accepted === 1 ? "the first" : `the first ${told.accepted}`}, then said its own token instead.`;
}

/** The step the round was part of. */
export function step(cohort) {
  const others = cohort.sequences === 1 ? "This sequence was alone in its step" : `${cohort.sequences} sequences shared the step`;
  return `${others}: ${tokens(cohort.tokens)} in one pass of the target.`;
}
