// The settings of a request beside its message, and questions to begin with.

import { $, el, say } from "./dom.js";

const AMOUNTS = {
  fixed: { label: "Drafted tokens", min: "1", max: "64", step: "1", value: "4" },
  threshold: { label: "Least confidence", min: "0", max: "1", step: "0.05", value: "0.5" },
};

const SHOWN = 4; // questions to begin with

/** Fills in the cell's own defaults. */
export function prepare(cell) {
  const [given, amount] = cell.policy.split(":");
  const known = [...$("policy").options].some((option) => option.value === given);
  if (!known) $("policy").append(el("option", {}, given));
  $("policy").value = given;
  showAmount();
  if (amount) $("amount").value = amount;
  $("rule").value = cell.rule;
  $("length").max = String(cell.most_tokens);
  $("load").max = String(cell.most_streams);
  $("load-field").hidden = cell.most_streams === 0;
  $("system-field").hidden = !cell.chat;
  if (!cell.chat)
    say(
      $("tries-text"),
      "This model has no chat template: each message is continued as plain text, by itself.",
    );
}

/** Questions to begin with; `ask(question)` is called with the one that is chosen. */
export async function offer(ask) {
  const questions = await (await fetch("/live/page/examples.json")).json();
  const tries = questions
    .slice(0, SHOWN)
    .map((question) => el("button", { class: "quiet", type: "button" }, question));
  for (const each of tries) each.addEventListener("click", () => ask(each.textContent));
  $("tries").append(...tries);
}

/** Replicas to choose from. */
export function showDrafters(names) {
  const select = $("drafter");
  const known = [...select.options].map((option) => option.value).filter(Boolean);
  if (known.join() === names.join()) return;
  const before = select.value;
  const options = names.map((name) => el("option", { value: name }, name));
  select.replaceChildren(el("option", { value: "" }, "any"), ...options);
  if (names.includes(before)) select.value = before;
}

function showAmount() {
  const kind = AMOUNTS[$("policy").value];
  $("amount-field").hidden = !kind;
  if (!kind) return;
  const { label, ...attributes } = kind;
  say($("amount-label"), label);
  for (const [name, value] of Object.entries(attributes)) $("amount").setAttribute(name, value);
  $("amount").value = kind.value;
}

export function policy() {
  const name = $("policy").value;
  return name in AMOUNTS ? `${name}:${$("amount").value}` : name;
}

/** A request without its messages. The seed lets a comparison draw the same again. */
export function settings() {
  const asked = {
    max_tokens: Number($("length").value),
    temperature: Number($("temperature").value),
    policy: policy(),
    rule: $("rule").value,
    seed: crypto.getRandomValues(new Uint32Array(1))[0],
  };
  for (const name of ["drafter", "shape"]) if ($(name).value) asked[name] = $(name).value;
  return asked;
}

$("policy").addEventListener("change", showAmount);
$("temperature").addEventListener("input", () =>
  say($("temperature-text"), $("temperature").value),
);
