// What tests ask of the open page. Installed before its own scripts, beside them and unseen by them.

globalThis.probe = (() => {
  const numbers = (text) => (text.match(/[\d.]+/g) ?? []).map(Number);
  const lightness = (rgb) =>
    rgb
      .map((part) => part / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
      .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const ratio = (one, other) => {
    const [high, low] = [lightness(one), lightness(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const colour = numbers(getComputedStyle(node).backgroundColor);
      if (colour.length === 3 || colour[3] > 0.99) return colour.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const seen = (node) => node.checkVisibility() && !node.closest("dialog, .hidden, .skip");
  const start = (node) => node.outerHTML.slice(0, 100);

  return {
    /** Every text that is shown, with its contrast. */
    contrast() {
      const found = [];
      for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
        if (!own || !seen(node) || node.closest("svg, noscript, :disabled")) continue;
        found.push([start(node), ratio(numbers(getComputedStyle(node).color).slice(0, 3), ground(node))]);
      }
      for (const node of document.querySelectorAll("svg text")) {
        found.push([start(node), ratio(numbers(getComputedStyle(node).fill).slice(0, 3), ground(node.closest(".card")))]);
      }
      return found;
    },
    nameless() {
      return [...document.querySelectorAll("button, input, select, textarea")]
        .filter((node) => ![...(node.labels ?? [])].some((label) => label.textContent.trim()))
        .filter((node) => !node.getAttribute("aria-label") && !(node.tagName === "BUTTON" && node.textContent.trim()))
        .map(start);
    },
    /** What the Tab key has to reach, in order. */
    focusable() {
      return [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
        .filter((node) => node.checkVisibility() && !node.disabled && !node.closest("dialog"))
        .map((node) => node.id || node.className || node.textContent);
    },
    /** Who has the focus, and whether it shows. */
    focused() {
      const node = document.activeElement;
      return [node === document.body ? "" : node.id || node.className || node.textContent, node === document.body || getComputedStyle(node).outlineStyle !== "none"];
    },
    tooWide() {
      return [...document.querySelectorAll("body *")]
        .filter((node) => seen(node) && !node.closest("svg"))
        .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 || node.getBoundingClientRect().left < -1)
        .map(start);
    },
    tooSmall(least) {
      return [...document.querySelectorAll("button, select, input, summary")]
        .filter((node) => seen(node) && node.getBoundingClientRect().height < least)
        .map(start);
    },
    legend() {
      return [...document.querySelectorAll(".legend .tok[data-origin]")].map((token) => {
        const style = getComputedStyle(token);
        return [token.dataset.origin, style.backgroundColor, style.borderBottomStyle];
      });
    },
    shares() {
      return Object.fromEntries([...document.querySelectorAll("#share span")].map((part) => [part.dataset.origin, part.style.width]));
    },
    survivals() {
      return [...document.querySelectorAll("#block .slot-bar i")].map((bar) => parseFloat(bar.style.width));
    },
    slide(id, value) {
      const slider = document.getElementById(id);
      slider.value = value;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    },
    /** How the number of tokens grew from now on. */
    grow() {
      const growth = (this.growth = []);
      const count = () => growth.push(document.querySelectorAll("#log .tok").length);
      new MutationObserver(count).observe(document.getElementById("log"), { childList: true, subtree: true });
    },
    /** Puts a hostile text wherever texts of the cell go. */
    async hurtBy(text) {
      const { Answer } = await import("/live/page/answer.js");
      const { choose } = await import("/live/page/view.js");
      const answer = new Answer({}, {});
      document.getElementById("log").append(answer.node);
      const spans = { round_ms: 1, draft_ms: 0, draft_pass_ms: 0, verify_ms: 0, verify_pass_ms: 0 };
      const slot = { token_id: 1, text, confidence: 0.5, survival: 0.5, gain: 0.5, fate: "rejected" };
      const told = { empty_because: text, prefix: 1, accepted: 0, why: "whole", price: null, slots: [slot] };
      answer.add({
        type: "round",
        tokens: [{ id: 1, text, origin: "corrected" }],
        told: { ...told, ...spans, sequences: 1, step_tokens: 2, late: [text] },
      });
      choose(answer, 0);
    },
    /** What is said of an answer of 40 tokens and a plain one of `ids`. */
    async verdict(drafts, plain, ids, drafted) {
      const { verdict } = await import("/live/page/words.js");
      const tokens = Array.from({ length: 40 }, (_, id) => ({ id }));
      return verdict({ tokens, asked: { temperature: 0, rule: "block" }, end: { drafted } }, tokens.slice(0, ids).map(({ id }) => id), drafts, plain);
    },
    /** How far the words of two neighbours stand apart, where no blank is between them. */
    gaps() {
      const spans = [...document.querySelectorAll("#log .answer:last-child .tok")];
      const boxes = spans.map((span) => [...span.getClientRects()]);
      return spans.slice(1).flatMap((span, place) => {
        const [before, after] = [boxes[place].at(-1), boxes[place + 1][0]];
        return before && after && before.top === after.top && span.textContent.trim() ? [after.left - before.right] : [];
      });
    },
    /** Whether some of the newest answer can be seen without scrolling. */
    inSight() {
      const first = document.querySelector("#log .answer:last-child .tok")?.getBoundingClientRect();
      return first !== undefined && first.top >= 0 && first.bottom <= innerHeight;
    },
    inject() {
      const script = document.createElement("script");
      try {
        script.textContent = "globalThis.hurt = 1";
      } catch {
        return "refused";
      }
      document.body.append(script);
      return globalThis.hurt ?? "stopped";
    },
    overwrite() {
      try {
        document.body.innerHTML = "<p>gone</p>";
        return "set";
      } catch {
        return "refused";
      }
    },
  };
})();
