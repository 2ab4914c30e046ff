// The conversation. It is kept here and nowhere else: each request sends all of it.

import { Answer, rate } from "./answer.js";
import { settings } from "./controls.js";
import { $, complain, el, say } from "./dom.js";
import { ahead, events, trouble } from "./stream.js";
import { best, choose, grown, watch } from "./view.js";
import { number, verdict } from "./words.js";

const SLOW_MS = 700; // between two rounds when they are shown one by one
const NARROW = matchMedia("(max-width: 39.99rem)");

let said = []; // turns of both, oldest first
let running = null; // the AbortController of the answer in progress

/** Sends what was typed; while an answer is in progress, stops it. */
export function submit() {
  if (running) running.abort();
  else send($("prompt").value.trim());
}

export async function send(text) {
  if (!text || running) return;
  const system = $("system").value.trim();
  const before = system ? [{ role: "system", content: system }] : [];
  const question = { role: "user", content: text };
  const asked = { messages: [...before, ...said, question], ...settings() };
  const answer = new Answer(asked, { chosen: choose, compare });
  const turn = el("article", { class: "turn asked", "aria-label": "You" }, text);
  $("prompt").value = "";
  if (NARROW.matches) $("prompt").blur(); // so that the keyboard makes room for the answer
  $("tries").hidden = true;
  $("log").append(turn, answer.node);
  if (NARROW.matches) turn.scrollIntoView({ block: "start" });
  else answer.foot.scrollIntoView({ block: "nearest" });
  watch(answer);
  const end = await run(answer.asked, "Answering.", async (event, signal) => {
    if (event.type === "begin") forget(event.left_out, turn);
    else await take(answer, event, signal);
  });
  if (end === undefined) return; // another conversation has begun
  following(answer, () => answer.finish(end));
  if (!answer.tokens.length) {
    turn.remove();
    answer.node.remove();
    $("prompt").value = text; // to be sent again
    return;
  }
  said.push(question, { role: "assistant", content: answer.text });
  best(answer);
  if (!end) return;
  const tau = number(end.tau, 2);
  say($("status"), `Done: ${end.tokens} tokens in ${end.rounds} rounds, ${tau} a round.`);
}

/**
 * Sends the same request without drafts, with them again, and without: two runs of each, in turns,
 * tell more than one.
 */
async function compare(answer) {
  if (running) return;
  const [drafts, plain] = [[rate(answer.end)], []];
  let ids = [];
  for (const [policy, speeds] of [["off", plain], [answer.asked.policy, drafts], ["off", plain]]) {
    const how = policy === "off" ? "without drafts" : "with drafts";
    const doing = `Answering the same ${how}${speeds.length ? " again" : ""}.`;
    following(answer, () => answer.compare(drafts, plain, doing));
    const heard = [];
    const end = await run({ ...answer.asked, policy }, doing, (event) =>
      heard.push(...(event.tokens ?? []).map((token) => token.id)),
    );
    if (!end) return answer.uncompared();
    speeds.push(rate(end));
    if (policy === "off") ids = heard;
  }
  const found = verdict(answer, ids, drafts, plain);
  following(answer, () => answer.compare(drafts, plain, found));
  say($("status"), found);
}

export function startAnew() {
  running?.abort();
  running = null;
  said = [];
  for (const turn of document.querySelectorAll("#log .turn, #log .forgotten")) turn.remove();
  $("tries").hidden = false;
  complain("");
  busy(false);
  watch(null);
  say($("status"), "A new conversation.");
  $("prompt").focus();
}

/**
 * Reads one answer. Returns the figures of its end; null where it broke off; undefined where
 * another conversation has begun.
 */
async function run(asked, doing, take) {
  const mine = (running = new AbortController());
  let end = null;
  complain("");
  busy(true);
  say($("status"), doing);
  try {
    const source = events("/live/generate", { body: asked, signal: mine.signal });
    for await (const event of ahead(source)) {
      if (event.type === "end") end = event;
      else await take(event, mine.signal);
    }
    if (!end) say($("status"), "The answer broke off.");
  } catch (error) {
    if (mine !== running) return undefined;
    say($("status"), error.name === "AbortError" ? "Stopped." : "");
    if (error.name !== "AbortError") complain(trouble(error));
  }
  if (mine !== running) return undefined;
  running = null;
  busy(false);
  return end;
}

async function take(answer, event, signal) {
  if ($("pace").value === "slow" && event.type === "round") await pause(SLOW_MS, signal);
  following(answer, () => answer.add(event));
  grown(answer, event);
}

/** Lets the answer grow; if its end is in view, scrolls so that it stays in view. */
function following(answer, grow) {
  const bottom = Math.min(innerHeight, $("log").getBoundingClientRect().bottom);
  const seen = answer.foot.getBoundingClientRect().top <= bottom + 24;
  grow();
  if (seen) answer.foot.scrollIntoView({ block: "nearest" });
}

/** Drops the oldest turns, which no longer fit into the model's context and are not sent again. */
function forget(count, turn) {
  if (!count) return;
  said = said.slice(count);
  const text = `The oldest ${count} messages no longer fit and are left out from here on.`;
  turn.before(el("p", { class: "note forgotten" }, text));
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const stop = () => (clearTimeout(timer), reject(new DOMException("stopped", "AbortError")));
    signal.addEventListener("abort", stop, { once: true });
  });
}

function busy(is) {
  $("go").toggleAttribute("data-running", is);
  say($("go-text"), is ? "Stop" : "Send");
  $("prompt").required = !is;
  $("log").setAttribute("aria-busy", String(is));
}
