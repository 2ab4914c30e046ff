// What is asked for: prompt, examples, and the switches.

import { $, el, say } from "./dom.js";

const AMOUNTS = {
  fixed: { label: "Slots", min: "1", max: "64", step: "1", value: "4" },
  threshold: { label: "Least confidence", min: "0", max: "1", step: "0.05", value: "0.5" },
};

let examples = [];
let place = 0;

/** Fills in examples and the cell's own defaults. */
export async function prepare(cell) {
  const [policy, amount] = cell.policy.split(":");
  $("policy").value = policy;
  showAmount();
  if (amount) $("amount").value = amount;
  $("rule").value = cell.rule;
  $("length").max = String(cell.most_tokens);
  $("load").max = String(cell.most_streams);
  $("load-field").hidden = cell.most_streams === 0;
}

export async function loadExamples() {
  examples = await (await fetch("/live/page/examples.json")).json();
  const domains = [...new Set(examples.map((example) => example.domain))];
  $("domains").append(
    ...domains.map((domain, index) =>
      el("label", {}, el("input", { type: "radio", name: "domain", value: domain, checked: index === 0 }), el("span", {}, domain)),
    ),
  );
  $("domains").addEventListener("change", () => show(0));
  $("another").addEventListener("click", () => show(place + 1));
  $("policy").addEventListener("change", showAmount);
  $("temperature").addEventListener("input", () => say($("temperature-text"), $("temperature").value));
  show(0);
}

/** Replicas to choose from; nothing to choose where there is one. */
export function showDrafters(names) {
  const select = $("drafter");
  $("drafter-field").hidden = names.length < 2;
  const known = [...select.options].map((option) => option.value).filter(Boolean);
  if (known.join() === names.join()) return;
  const before = select.value;
  select.replaceChildren(el("option", { value: "" }, "any"), ...names.map((name) => el("option", { value: name }, name)));
  if (names.includes(before)) select.value = before;
}

function show(next) {
  const domain = document.querySelector("input[name=domain]:checked")?.value;
  const its = examples.filter((example) => example.domain === domain);
  if (!its.length) return;
  place = next % its.length;
  $("prompt").value = its[place].prompt;
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

/** The body of a request. */
export function wish() {
  const asked = {
    prompt: $("prompt").value,
    max_tokens: Number($("length").value),
    temperature: Number($("temperature").value),
    policy: policy(),
    rule: $("rule").value,
  };
  return $("drafter").value ? { ...asked, drafter: $("drafter").value } : asked;
}
