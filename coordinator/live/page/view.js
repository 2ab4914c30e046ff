// Which round is shown: the newest while an answer arrives, the best one once it is complete, or
// the one that the user chooses.

import { $, say } from "./dom.js";
import { showRound } from "./round.js";

const CALM_MS = 180; // least time between two rounds that the view follows

const COUNTED = ["drafted", "bonus", "corrected", "plain", "forced"];

let answer = null;
let chosen = 0;
let following = true;
let followed = 0;

/** Shows an answer's rounds from now on; none where it is null. */
export function watch(next) {
  answer?.mark();
  answer = next;
  following = true;
  chosen = 0;
  showRound(null);
  step();
}

/** Follows the answer when it has grown by a piece. */
export function grown(which, event) {
  if (which !== answer) return;
  const now = performance.now();
  if (event.type === "round" && following && now - followed > CALM_MS) {
    followed = now;
    choose(answer, answer.rounds.length - 1, true);
  } else step();
}

/**
 * The answer is complete: shows the round that drafting brought most in, unless the user looks at
 * another one.
 */
export function best(which) {
  if (which !== answer || !following) return;
  const gained = (round) => round.tokens.filter((token) => token.origin === "drafted").length;
  const worth = answer.rounds.map(
    (round) => 100 * gained(round) + (round.told?.slots.length ?? 0),
  );
  choose(answer, worth.indexOf(Math.max(...worth)));
}

export function choose(which, index, follows = false) {
  if (which !== answer) watch(which);
  if (!answer?.rounds.length) return;
  chosen = Math.min(Math.max(index, 0), answer.rounds.length - 1);
  following = follows || chosen === answer.rounds.length - 1;
  showRound(answer.rounds[chosen]);
  answer.mark(chosen);
  step();
}

function step() {
  const count = answer?.rounds.length ?? 0;
  const slider = $("which");
  slider.disabled = !count;
  slider.max = String(Math.max(count, 1));
  slider.value = String(chosen + 1);
  slider.setAttribute("aria-valuetext", `round ${chosen + 1} of ${count}`);
  $("earlier").disabled = !count || chosen <= 0;
  $("later").disabled = !count || chosen >= count - 1;
  say($("round-of"), count ? `${chosen + 1} of ${count}` : "");
  legend();
}

/** Where the tokens of the answer came from. */
function legend() {
  const counts = answer?.counts ?? {};
  const total = answer?.tokens.length || 1;
  for (const part of $("share").children)
    part.style.width = `${(100 * (counts[part.dataset.origin] ?? 0)) / total}%`;
  for (const name of COUNTED) say($(`n-${name}`), String(counts[name] ?? 0));
  $("forced-legend").hidden = !counts.forced;
}

$("which").addEventListener("input", () => choose(answer, Number($("which").value) - 1));
$("earlier").addEventListener("click", () => choose(answer, chosen - 1));
$("later").addEventListener("click", () => choose(answer, chosen + 1));
