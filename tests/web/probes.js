// What tests read from the open page. Installed before the page's own scripts, which do not see it.

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
        const written = (child) => child.nodeType === 3 && child.textContent.trim();
        const own = [...node.childNodes].some(written);
        if (!own || !seen(node) || node.closest("svg, noscript, :disabled")) continue;
        const colour = numbers(getComputedStyle(node).color).slice(0, 3);
        found.push([start(node), ratio(colour, ground(node))]);
      }
      for (const node of document.querySelectorAll("svg text")) {
        const colour = numbers(getComputedStyle(node).fill).slice(0, 3);
        found.push([start(node), ratio(colour, ground(node.closest(".card")))]);
      }
      return found;
    },
    nameless() {
      return [...document.querySelectorAll("button, input, select, textarea")]
        .filter((node) => ![...(node.labels ?? [])].some((label) => label.textContent.trim()))
        .filter((node) => !node.getAttribute("aria-label"))
        .filter((node) => !(node.tagName === "BUTTON" && node.textContent.trim()))
        .map(start);
    },
    /** What the Tab key has to reach, in order. */
    focusable() {
      const reached = 'a[href], button, input, select, textarea, summary, [tabindex="0"]';
      return [...document.querySelectorAll(reached)]
        .filter((node) => node.checkVisibility() && !node.disabled && !node.closest("dialog"))
        .map((node) => node.id || node.className || node.textContent);
    },
    /** The element with the focus, and whether it shows. */
    focused() {
      const node = document.activeElement;
      const none = node === document.body;
      return [
        none ? "" : node.id || node.className || node.textContent,
        none || getComputedStyle(node).outlineStyle !== "none",
      ];
    },
    tooWide() {
      return [...document.querySelectorAll("body *")]
        .filter((node) => seen(node) && !node.closest("svg"))
        .filter((node) => {
          const { left, right } = node.getBoundingClientRect();
          return right > innerWidth + 1 || left < -1;
        })
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
      const parts = [...document.querySelectorAll("#share span")];
      return Object.fromEntries(parts.map((part) => [part.dataset.origin, part.style.width]));
    },
    survivals() {
      const bars = [...document.querySelectorAll("#block .slot-bar i")];
      return bars.map((bar) => parseFloat(bar.style.width));
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
      const log = document.getElementById("log");
      new MutationObserver(count).observe(log, { childList: true, subtree: true });
    },
    /** Puts a hostile text wherever the page shows texts of the cell. */
    async hurtBy(text) {
      const { Answer } = await import("/live/page/answer.js");
      const { choose } = await import("/live/page/view.js");
      const answer = new Answer({}, {});
      document.getElementById("log").append(answer.node);
      const spans = { round_ms: 1, draft_ms: 0, draft_pass_ms: 0, verify_pass_ms: 0 };
      const chances = { confidence: 0.5, survival: 0.5, gain: 0.5 };
      const slot = { token_id: 1, text, ...chances, fate: "rejected" };
      const settled = { prefix: 1, accepted: 0, why: "whole", price: null };
      const told = { empty_because: text, ...settled, slots: [slot] };
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
      const answer = { tokens, asked: { temperature: 0, rule: "block" }, end: { drafted } };
      const same = tokens.slice(0, ids).map(({ id }) => id);
      return verdict(answer, same, drafts, plain);
    },
    /** How far the words of two neighbours stand apart, where no blank is between them. */
    gaps() {
      const spans = [...document.querySelectorAll("#log .answer:last-child .tok")];
      const boxes = spans.map((span) => [...span.getClientRects()]);
      return spans.slice(1).flatMap((span, place) => {
        const [before, after] = [boxes[place].at(-1), boxes[place + 1][0]];
        const beside = before && after && before.top === after.top && span.textContent.trim();
        return beside ? [after.left - before.right] : [];
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
