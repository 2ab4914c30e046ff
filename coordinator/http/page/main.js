// The page: one answer at a time, the cell beside it.

import { Answer } from "./answer.js";
import { Curve, History } from "./charts.js";
import { loadExamples, policy, prepare, showDrafters, wish } from "./controls.js";
import { $, say } from "./dom.js";
import { showPools } from "./pools.js";
import { showRound } from "./round.js";
import { ahead, call, events, Refused } from "./stream.js";
import { number } from "./words.js";

const SLOW_MS = 700; // between two rounds when they are shown one by one
const CALM_MS = 180; // least time between two rounds that the block view follows
const AGAIN_MS = 2000; // before the cell is asked for again

const answer = new Answer((index) => choose(index, false));
let running = null; // what stops the present answer
let following = true;
let chosen = 0;
let followed = 0;

// The answer.

async function generate() {
  running?.abort();
  const mine = (running = new AbortController());
  const asked = wish();
  complain("");
  following = true;
  answer.clear(asked.prompt);
  busy(true);
  say($("status"), "Generating.");
  try {
    let end = null;
    for await (const event of ahead(events("/live/generate", { body: asked, signal: mine.signal }))) {
      if (event.type === "end") end = event;
      else if (event.type !== "begin") await take(event, mine.signal);
    }
    answer.figures(end);
    say($("status"), end ? `Done: ${end.tokens} tokens in ${end.rounds} rounds, ${number(end.tau, 2)} per round.` : "The answer broke off.");
  } catch (error) {
    if (error.name === "AbortError") say($("status"), "Stopped.");
    else fail(error);
  }
  if (mine !== running) return; // another answer took its place
  answer.end();
  if (following && answer.rounds.length) choose(answer.rounds.length - 1, true);
  busy(false);
  running = null;
}

async function take(event, signal) {
  if ($("pace").value === "slow" && event.type === "round") await pause(SLOW_MS, signal);
  answer.add(event);
  answer.figures();
  if (event.type !== "round") return;
  const slider = $("which");
  slider.max = String(answer.rounds.length);
  slider.disabled = false;
  const now = performance.now();
  if (following && now - followed > CALM_MS) {
    followed = now;
    choose(answer.rounds.length - 1, true);
  } else step();
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), reject(new DOMException("stopped", "AbortError"))), { once: true });
  });
}

function busy(is) {
  $("go").toggleAttribute("data-running", is);
  say($("go-text"), is ? "Stop" : "Generate");
  $("text").setAttribute("aria-busy", String(is));
}

// The round that is looked at.

function choose(index, follows) {
  if (!answer.rounds.length) return;
  chosen = Math.min(Math.max(index, 0), answer.rounds.length - 1);
  following = follows || (running !== null && chosen === answer.rounds.length - 1);
  showRound(answer.rounds, chosen);
  answer.mark(chosen);
  step();
}

function step() {
  const count = answer.rounds.length;
  $("which").value = String(chosen + 1);
  $("which").setAttribute("aria-valuetext", `round ${chosen + 1} of ${count}`);
  $("earlier").disabled = chosen <= 0;
  $("later").disabled = chosen >= count - 1;
  say($("round-of"), count ? `${chosen + 1} of ${count}` : "");
}

// The cell.

const history = new History($("history"));
const curve = new Curve($("curve"));

async function watch() {
  for (;;) {
    try {
      const cell = await (await call("/live/cell")).json();
      say($("pair"), cell.drafter ? `${cell.model}, drafted by ${cell.drafter}` : `${cell.model}, no drafter`);
      if (!watch.prepared) await prepare(cell);
      watch.prepared = true;
      for await (const frame of events("/live/events", { anyone: true })) if (frame.type === "cell") show(frame);
      state("lost", "the cell has gone");
    } catch (error) {
      if (error.status === 403) return alone();
      state("lost", error instanceof Refused ? error.message : "no connection");
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

/** This key is a client's: pools and load are the operator's. */
function alone() {
  state("serving", "ready");
  document.querySelector(".live").hidden = true;
}

function show(frame) {
  const serving = frame.workers.filter((worker) => worker.state === "serving");
  const count = (role) => serving.filter((worker) => worker.role === role).length;
  const plural = (many, word) => `${many} ${word}${many === 1 ? "" : "s"}`;
  state(
    frame.lanes.length ? "serving" : "lost",
    frame.lanes.length ? `${plural(count("verify"), "verifier")}, ${plural(count("draft"), "drafter")}` : "no verifier",
  );
  showDrafters(serving.filter((worker) => worker.role === "draft").map((worker) => worker.name));
  history.add(frame);
  showPools(frame);
  const busiest = frame.lanes.filter((lane) => lane.rates).sort((one, other) => other.running - one.running)[0];
  if (busiest) curve.show(busiest.rates);
  else if (!curve.count) curve.nothing("Nothing has been drafted yet.");
  if (turning === null && document.activeElement !== $("load")) showLoad(frame.load.streams);
}

function state(name, text) {
  $("state").dataset.state = name;
  say($("state-text"), text);
}

function showLoad(streams) {
  $("load").value = String(streams);
  say($("load-text"), String(streams));
}

let turning = null; // while what was chosen is on its way, frames still show what was before

function turn() {
  const asked = { streams: Number($("load").value), policy: policy(), rule: $("rule").value };
  say($("load-text"), $("load").value);
  clearTimeout(turning);
  const mine = setTimeout(async () => {
    try {
      await call("/live/load", { body: asked });
    } catch (error) {
      fail(error);
    }
    if (turning === mine) turning = null;
  }, 120);
  turning = mine;
}

// Trouble, colours, keys.

function fail(error) {
  complain(error instanceof Refused ? error.message : "The cell cannot be reached.");
  say($("status"), "");
}

function complain(text) {
  say($("alert"), text);
  $("alert").hidden = !text;
}

const THEMES = [
  ["", "Auto", "as the system"],
  ["light", "Light", "light"],
  ["dark", "Dark", "dark"],
];
let theme = 0;

function recolour() {
  theme = (theme + 1) % THEMES.length;
  const [name, text, words] = THEMES[theme];
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  say($("theme-text"), text);
  $("theme").setAttribute("aria-label", `Colours: ${words}`);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else generate();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  $("form").requestSubmit();
});
$("which").addEventListener("input", () => choose(Number($("which").value) - 1, false));
$("earlier").addEventListener("click", () => choose(chosen - 1, false));
$("later").addEventListener("click", () => choose(chosen + 1, false));
$("load").addEventListener("input", turn);
for (const name of ["policy", "rule", "amount"]) $(name).addEventListener("change", () => Number($("load").value) > 0 && turn());
$("theme").addEventListener("click", recolour);
new ResizeObserver(() => history.points.length && history.paint()).observe($("history"));

await loadExamples();
watch();
