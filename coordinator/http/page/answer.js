// The answer: tokens as they come, coloured by origin, and the rounds behind them.

import { $, el, say } from "./dom.js";
import { number } from "./words.js";

const ORIGINS = ["drafted", "bonus", "corrected", "plain"];

export class Answer {
  /** `chosen(index)` is called when a token of round `index` is clicked. */
  constructor(chosen) {
    this.rounds = [];
    this.spans = [];
    $("tokens").addEventListener("click", (event) => {
      const index = event.target.dataset?.round;
      if (index !== undefined && index !== "") chosen(Number(index));
    });
  }

  clear(prompt) {
    this.rounds = [];
    this.spans = [];
    this.counts = { drafted: 0, bonus: 0, corrected: 0, plain: 0 };
    this.began = null;
    this.marked = [];
    say($("said"), prompt);
    $("tokens").replaceChildren();
    $("caret").hidden = false;
    $("text").scrollTop = 0;
    this.figures();
  }

  /** A piece: the first token, or a round's. */
  add(event) {
    const index = event.type === "round" ? this.rounds.length : null;
    const spans = event.tokens.map((token, place) => this.span(token, place === 0, index));
    if (event.type === "round") this.rounds.push({ ...event, spans });
    for (const token of event.tokens) this.counts[token.origin] += 1;
    const box = $("text");
    const low = box.scrollHeight - box.scrollTop - box.clientHeight < 48;
    $("tokens").append(...spans);
    if (low) box.scrollTop = box.scrollHeight;
    this.began ??= performance.now();
  }

  span(token, starts, index) {
    const span = el("span", { class: "tok", "data-origin": token.origin, "data-round": index }, token.text);
    if (token.text === "") span.classList.add("unsaid");
    else if (token.text.includes("\n")) span.classList.add("breaks");
    if (starts) span.classList.add("starts");
    return span;
  }

  /** Marks the tokens of a round. */
  mark(index) {
    for (const span of this.marked ?? []) span.classList.remove("shown");
    this.marked = this.rounds[index]?.spans ?? [];
    for (const span of this.marked) span.classList.add("shown");
  }

  get total() {
    return ORIGINS.reduce((sum, origin) => sum + this.counts[origin], 0);
  }

  /** Figures of what is shown; `end` has the coordinator's own. */
  figures(end = null) {
    const total = this.total;
    for (const part of $("share").children) {
      part.style.width = total ? `${(100 * this.counts[part.dataset.origin]) / total}%` : "0";
    }
    for (const origin of ORIGINS) say($(`n-${origin}`), String(this.counts[origin]));
    say($("f-tokens"), total ? String(total) : "–");
    const committed = this.rounds.reduce((sum, round) => sum + round.tokens.length, 0);
    const tau = end?.tau || (this.rounds.length ? committed / this.rounds.length : 0);
    say($("f-tau"), tau ? number(tau, 2) : "–");
    if (end) {
      const spent = (end.total_ms - end.first_ms) / 1000;
      say($("f-rate"), end.tokens > 1 && spent > 0 ? number((end.tokens - 1) / spent) : "–");
    } else if (!total) say($("f-rate"), "–");
  }

  end() {
    $("caret").hidden = true;
  }
}
