// One round: the block slot by slot, where its prefix ends and why, and where the time went.

import { $, el, say } from "./dom.js";
import { bar, explain, fate, number, percent, shared } from "./words.js";

const HOPS = [
  ["draft_pass", "draft"],
  ["draft_way", "on the way"],
  ["verify_pass", "verify"],
  ["rest", "the rest"],
];

const NOTHING = $("why").textContent; // shown before the first round

/** Shows a round; none where it is null. */
export function showRound(round) {
  const told = round?.told;
  $("hops").hidden = !told;
  $("block-note").hidden = !told?.slots.length;
  if (!told) {
    say($("why"), round ? "This round was not explained." : NOTHING);
    $("block").replaceChildren();
    return;
  }
  say($("why"), `${explain(told)} ${shared(told)}${late(told.late)}`);
  $("block").replaceChildren(table(told, round.tokens));
  hops(told);
}

function late(names) {
  return names.length ? ` Late: ${names.join(", ")}.` : "";
}

function table(told, tokens) {
  const least = bar(told);
  const rows = told.slots.map((slot, place) => row(told, slot, place, least));
  const own = tokens.at(-1);
  if (own && own.origin !== "drafted") rows.push(targetRow(own));
  return el(
    "table",
    {},
    el(
      "caption",
      { class: "hidden" },
      "The drafted tokens in order, and the token the model added",
    ),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col", class: "n" }, "#"),
        el("th", { scope: "col", class: "t" }, "token"),
        el("th", { scope: "col", class: "c" }, "confidence"),
        el("th", { scope: "col" }, "chance"),
        el("th", { scope: "col", class: "f" }, "outcome"),
      ),
    ),
    el("tbody", {}, ...rows),
  );
}

function row(told, slot, place, least) {
  const fill = el("i");
  fill.style.width = `${100 * slot.survival}%`;
  const cell = el("span", { class: "slot-bar" }, fill, el("em", {}, percent(slot.survival)));
  if (least !== null && least < 1) {
    const mark = el("u", { title: `worth verifying from ${percent(least)} on` });
    mark.style.left = `${100 * least}%`;
    cell.append(mark);
  }
  const origin = slot.fate === "accepted" ? "drafted" : "plain";
  const text = slot.token_id === null ? "…" : visible(slot.text);
  const line = el(
    "tr",
    { "data-fate": slot.fate },
    el("td", { class: "n" }, String(place + 1)),
    el("td", { class: "t" }, el("span", { class: "tok", "data-origin": origin }, text)),
    el("td", { class: "c" }, percent(slot.confidence)),
    el("td", {}, cell),
    el("td", { class: "f" }, fate(slot.fate)),
  );
  if (place === told.prefix - 1 && place < told.slots.length - 1) line.classList.add("last");
  if (place === told.prefix && place > 0) line.classList.add("first-out");
  return line;
}

function targetRow(token) {
  return el(
    "tr",
    { "data-fate": "target" },
    el("td", { class: "n" }, "+"),
    el(
      "td",
      { class: "t" },
      el("span", { class: "tok", "data-origin": token.origin }, visible(token.text)),
    ),
    el("td", { class: "c" }),
    el("td", { class: "own" }, "the model’s own token"),
    el("td", { class: "f" }, token.origin),
  );
}

/** Blanks and line ends as signs, so that a token is never invisible. */
function visible(text) {
  if (text === "") return "·";
  const blanks = (found) => "␣".repeat(found.length);
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replace(/^ +/, blanks);
}

function hops(told) {
  const spans = {
    draft_pass: told.draft_pass_ms,
    draft_way: Math.max(told.draft_ms - told.draft_pass_ms, 0),
    verify_pass: told.verify_pass_ms,
    rest: Math.max(told.round_ms - told.draft_ms - told.verify_pass_ms, 0),
  };
  const whole = Object.values(spans).reduce((sum, each) => sum + each, 0) || 1;
  $("hop-bar").replaceChildren(
    ...HOPS.map(([name]) => {
      const part = el("span", { class: "hop", "data-hop": name });
      part.style.width = `${(100 * spans[name]) / whole}%`;
      return part;
    }),
  );
  $("hop-list").replaceChildren(
    ...HOPS.map(([name, word]) =>
      el(
        "li",
        {},
        el("span", { class: "hop", "data-hop": name, "aria-hidden": "true" }),
        `${word} `,
        el("b", {}, `${number(spans[name], 2)} ms`),
      ),
    ),
  );
}
