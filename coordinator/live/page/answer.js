// One answer: its tokens as they arrive, coloured by origin, the rounds behind them, its speed, and
// that of plain decoding.

import { el, say } from "./dom.js";
import { number, overall } from "./words.js";

/** Tokens a second after the first one, by the coordinator's clock. */
export const rate = (end) =>
  end.tokens > 1 ? (1000 * (end.tokens - 1)) / Math.max(end.total_ms - end.first_ms, 0.001) : 0;

export class Answer {
  /**
   * `asked`: the body of its request. `on.chosen(answer, index)`: a token of a round was clicked;
   * `on.compare(answer)`: a comparison was asked for.
   */
  constructor(asked, on) {
    this.asked = asked;
    this.rounds = [];
    this.tokens = [];
    this.end = null;
    this.counts = { drafted: 0, bonus: 0, corrected: 0, plain: 0, forced: 0 };
    this.marked = [];
    this.caret = el("span", { class: "caret" });
    this.said = el("div", { class: "said" }, this.caret);
    this.figures = el("p", { class: "figures" });
    this.button = el(
      "button",
      { class: "quiet", type: "button", hidden: true },
      "Compare with plain decoding",
    );
    this.against = el("div", { class: "against", hidden: true });
    this.foot = el("div", { class: "foot" });
    const facts = el("div", { class: "facts" }, this.figures, this.button);
    this.node = el(
      "article",
      { class: "turn answer", "aria-label": "Answer" },
      this.said,
      facts,
      this.against,
      this.foot,
    );
    this.said.addEventListener("click", (event) => {
      const index = event.target.dataset?.round;
      if (index) on.chosen(this, Number(index));
    });
    this.button.addEventListener("click", () => on.compare(this));
  }

  get text() {
    return this.tokens.map((token) => token.text).join("");
  }

  /** Adds a piece: the first token, or the tokens of a round. */
  add(event) {
    const index = event.type === "round" ? this.rounds.length : null;
    const spans = event.tokens.map((token) => this.span(token, index));
    if (event.type === "round") this.rounds.push({ ...event, spans });
    for (const token of event.tokens) {
      this.counts[token.origin] += 1;
      this.counts.forced += token.forced;
    }
    this.tokens.push(...event.tokens);
    this.caret.before(...spans);
    this.tell();
  }

  span(token, index) {
    const span = el(
      "span",
      { class: "tok", "data-origin": token.origin, "data-round": index },
      token.text,
    );
    if (token.text === "") span.classList.add("unsaid");
    else if (token.text.includes("\n")) span.classList.add("breaks");
    if (token.forced) {
      span.classList.add("forced");
      span.title = "the form left nothing else";
    }
    return span;
  }

  /** Marks the tokens of a round; those of none without an index. */
  mark(index = -1) {
    for (const span of this.marked) span.classList.remove("shown");
    this.marked = this.rounds[index]?.spans ?? [];
    for (const span of this.marked) span.classList.add("shown");
  }

  /** Ends the answer. `end`: the coordinator's figures; null where the answer was cut short. */
  finish(end) {
    this.end = end;
    this.caret.hidden = true;
    this.button.hidden = !end || this.asked.policy === "off";
    this.tell();
  }

  tell() {
    const count = this.tokens.length;
    const committed = this.rounds.reduce((sum, round) => sum + round.tokens.length, 0);
    const facts = [`${count} ${count === 1 ? "token" : "tokens"}`];
    const tau = () => number(this.end?.tau || committed / this.rounds.length, 2);
    if (this.rounds.length) facts.push(`${tau()} tokens a round`);
    if (this.end && rate(this.end)) facts.push(`${number(rate(this.end), 1)} tokens/s`);
    say(this.figures, facts.join(" · "));
  }

  /** Shows speeds with drafts and without, as far as they are measured, and a sentence on them. */
  compare(drafts, plain, words) {
    const most = Math.max(overall(drafts), overall(plain));
    const bar = (name, rates) => {
      const fill = el("i");
      fill.style.width = `${(100 * overall(rates)) / most}%`;
      const text = rates.map((each) => number(each, 1)).join(" and ");
      return el(
        "div",
        { class: "speed" },
        el("span", {}, name),
        el("b", {}, rates.length ? `${text} tokens/s` : "–"),
        el("span", { class: "meter", "aria-hidden": "true" }, fill),
      );
    };
    this.button.hidden = true;
    this.against.hidden = false;
    this.against.replaceChildren(
      bar("with drafts", drafts),
      bar("plain", plain),
      el("p", { class: "verdict" }, words),
    );
  }

  /** The comparison was broken off; it can be asked for again. */
  uncompared() {
    this.button.hidden = false;
    this.against.hidden = true;
  }
}
