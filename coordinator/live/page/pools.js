// Who is there, how much each holds, and how fast each verifier answers.

import { $, el } from "./dom.js";
import { number } from "./words.js";

const SECOND = 4; // frames

let recent = [];

export function showPools(frame) {
  recent = [...recent.slice(-(SECOND - 1)), frame];
  const most = Math.max(1, ...frame.workers.map((worker) => worker.sequences));
  const pool = (role, title) => {
    const its = frame.workers.filter((worker) => worker.role === role);
    const rows = its.length ? its.map((each) => worker(each, most)) : [el("p", { class: "note" }, "none")];
    return el("div", { class: "pool" }, el("h3", {}, title), el("div", { class: "workers" }, ...rows));
  };
  const lanes = frame.lanes.map((lane) => figures(lane));
  $("lanes").replaceChildren(pool("verify", "Verifiers run the model"), pool("draft", "Drafters propose tokens"), ...lanes, lastAnswers(frame.ended));
}

function lastAnswers(ended) {
  const rows = ended.length ? ended.map((each) => answer(each)) : [el("p", { class: "note" }, "none yet")];
  return el("div", { class: "pool" }, el("h3", {}, "Last answers"), el("div", { class: "ended" }, ...rows));
}

function answer(each) {
  const facts = [each.outcome, `${each.tokens} tokens`, each.rounds ? `${number(each.tau, 2)} a round` : null, `${number(each.ms, 0)} ms`];
  return el("p", {}, `${each.index ? `${each.id} #${each.index}` : each.id}: ${facts.filter((fact) => fact).join(" · ")}`);
}

function worker(each, most) {
  const fill = el("i");
  fill.style.width = `${(100 * each.sequences) / most}%`;
  return el(
    "div",
    { class: "worker", "data-role": each.role },
    el("span", { class: "state", "data-state": each.state === "serving" ? "serving" : "lost" }, el("span", { class: "dot", "aria-hidden": "true" })),
    el("span", {}, each.name),
    el("span", { class: "meter", "aria-hidden": "true" }, fill),
    el("span", { class: "held" }, each.state === "serving" ? `${each.sequences} ${each.sequences === 1 ? "answer" : "answers"}` : each.state),
    each.detail ? el("span", { class: "detail" }, each.detail) : null,
  );
}

function figures(lane) {
  const seconds = recent.length / SECOND;
  const sum = (name) =>
    recent.reduce((all, frame) => all + (frame.lanes.find((each) => each.name === lane.name)?.[name] ?? 0), 0);
  const turns = sum("turns");
  const late = Object.entries(lane.late).map(([name, times]) => `${name} late ${times}×`);
  const facts = [
    ["tokens/s", number(sum("committed") / seconds)],
    ["tokens a round", turns ? number(sum("committed") / turns, 2) : "–"],
    ["a round", lane.round_ms ? `${number(lane.round_ms, 1)} ms` : null],
  ];
  return el(
    "div",
    { class: "lane pool" },
    el("h3", {}, `${lane.name}${lane.curve ? "" : " · its cost is not known yet: everything is verified"}`),
    el("div", { class: "lane-figures" }, ...facts.filter(([, value]) => value).map(([name, value]) => el("span", {}, el("b", {}, value), ` ${name}`)), ...late.map((text) => el("span", {}, text))),
  );
}
