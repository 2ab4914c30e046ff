// The cell beside the chat: its workers, its load, and the background load that can be added.

import { Curve, History } from "./charts.js";
import { policy, prepare, showDrafters } from "./controls.js";
import { $, complain, say } from "./dom.js";
import { showPools } from "./pools.js";
import { call, events, Refused, trouble } from "./stream.js";

const AGAIN_MS = 2000; // before the cell is asked for again

const history = new History($("history"));
const curve = new Curve($("curve"));
let prepared = false;

export async function watchCell() {
  for (;;) {
    try {
      const cell = await (await call("/live/cell")).json();
      if (!prepared) prepare(cell);
      prepared = true;
      const { model, drafter } = cell;
      say($("pair"), drafter ? `${model}, drafted by ${drafter}` : `${model}, no drafter`);
      for await (const frame of events("/live/events", { anyone: true }))
        if (frame.type === "cell") show(frame);
      state("lost", "the server has gone");
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
    frame.lanes.length
      ? `${plural(count("verify"), "verifier")}, ${plural(count("draft"), "drafter")}`
      : "no verifier",
  );
  showDrafters(serving.filter((worker) => worker.role === "draft").map((worker) => worker.name));
  history.add(frame);
  showPools(frame);
  const busiest = frame.lanes
    .filter((lane) => lane.rates)
    .sort((one, other) => other.running - one.running)[0];
  if (busiest) {
    $("rates").hidden = false;
    curve.show(busiest.rates);
  }
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

let turning = null; // timer of a change that is being sent; frames still show the old load then

function turn() {
  const asked = { streams: Number($("load").value), policy: policy(), rule: $("rule").value };
  say($("load-text"), $("load").value);
  clearTimeout(turning);
  const mine = setTimeout(async () => {
    try {
      await call("/live/load", { body: asked });
    } catch (error) {
      complain(trouble(error));
    }
    if (turning === mine) turning = null;
  }, 120);
  turning = mine;
}

$("load").addEventListener("input", turn);
for (const name of ["policy", "rule", "amount"])
  $(name).addEventListener("change", () => Number($("load").value) > 0 && turn());
new ResizeObserver(() => history.points.length && history.paint()).observe($("history"));
