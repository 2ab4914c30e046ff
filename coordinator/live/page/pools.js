// The workers, how much each holds, how fast each verifier answers, and the last answers.

import { $, el } from "./dom.js";
import { number } from "./words.js";

const SECOND = 4; // frames

let recent = [];

const note = (text) => el("p", { class: "note" }, text);

export function showPools(frame) {
  recent = [...recent.slice(-(SECOND - 1)), frame];
  const most = Math.max(1, ...frame.workers.map((worker) => worker.sequences));
  const pool = (role, title) => {
    const its = frame.workers.filter((worker) => worker.role === role);
    const rows = its.length ? its.map((each) => worker(each, most)) : [note("none")];
    const list = el("div", { class: "workers" }, ...rows);
    return el("div", { class: "pool" }, el("h3", {}, title), list);
  };
  const lanes = frame.lanes.map((lane) => figures(lane));
  $("lanes").replaceChildren(
    pool("verify", "Verifiers run the model"),
    pool("draft", "Drafters propose tokens"),
    ...lanes,
    lastAnswers(frame.ended),
  );
}

function lastAnswers(ended) {
  const rows = ended.length ? ended.map((each) => answer(each)) : [note("none yet")];
  const list = el("div", { class: "ended" }, ...rows);
  return el("div", { class: "pool" }, el("h3", {}, "Last answers"), list);
}

function answer(each) {
  const facts = [
    each.outcome,
    `${each.tokens} tokens`,
    each.rounds ? `${number(each.tau, 2)} a round` : null,
    `${number(each.ms, 0)} ms`,
  ];
  const name = each.index ? `${each.id} #${each.index}` : each.id;
  return el("p", {}, `${name}: ${facts.filter((fact) => fact).join(" · ")}`);
}

function worker(each, most) {
  const fill = el("i");
  fill.style.width = `${(100 * each.sequences) / most}%`;
  const serving = each.state === "serving";
  const held = `${each.sequences} ${each.sequences === 1 ? "answer" : "answers"}`;
  return el(
    "div",
    { class: "worker", "data-role": each.role },
    el(
      "span",
      { class: "state", "data-state": serving ? "serving" : "lost" },
      el("span", { class: "dot", "aria-hidden": "true" }),
    ),
    el("span", {}, each.name),
    el("span", { class: "meter", "aria-hidden": "true" }, fill),
    el("span", { class: "held" }, serving ? held : each.state),
    each.detail ? el("span", { class: "detail" }, each.detail) : null,
  );
}

function figures(lane) {
  const seconds = recent.length / SECOND;
  const laneOf = (frame) => frame.lanes.find((each) => each.name === lane.name);
  const sum = (name) => recent.reduce((all, frame) => all + (laneOf(frame)?.[name] ?? 0), 0);
  const turns = sum("turns");
  const late = Object.entries(lane.late).map(([name, times]) => `${name} late ${times}×`);
  const facts = [
    ["tokens/s", number(sum("committed") / seconds)],
    ["tokens a round", turns ? number(sum("committed") / turns, 2) : "–"],
    ["a round", lane.round_ms ? `${number(lane.round_ms, 1)} ms` : null],
  ];
  const unknown = lane.curve ? "" : " · its cost is not known yet: everything is verified";
  return el(
    "div",
    { class: "lane pool" },
    el("h3", {}, `${lane.name}${unknown}`),
    el(
      "div",
      { class: "lane-figures" },
      ...facts
        .filter(([, value]) => value)
        .map(([name, value]) => el("span", {}, el("b", {}, value), ` ${name}`)),
      ...late.map((text) => el("span", {}, text)),
    ),
  );
}
