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
      return [...document.querySelectorAll('a[href], button, input, select, textarea, [tabindex="0"]')]
        .filter((node) => node.checkVisibility() && !node.disabled && !node.closest("dialog"))
        .filter((node) => node.type !== "radio" || node.checked)
        .map((node) => node.id || node.className || node.name);
    },
    /** Who has the focus, and whether it shows. */
    focused() {
      const node = document.activeElement;
      const marked = node.type === "radio" ? node.nextSibling : node;
      return [node.id || node.className || node.name, getComputedStyle(marked).outlineStyle !== "none"];
    },
    tooWide() {
      return [...document.querySelectorAll("body *")]
        .filter((node) => seen(node) && !node.closest("svg"))
        .filter((node) => node.getBoundingClientRect().right > innerWidth + 1 || node.getBoundingClientRect().left < -1)
        .map(start);
    },
    tooSmall(least) {
      return [...document.querySelectorAll("button, select, input:not([type=radio]), .segments label")]
        .filter((node) => seen(node) && node.getBoundingClientRect().height < least)
        .map(start);
    },
    legend() {
      return [...document.querySelectorAll(".legend .tok")].map((token) => {
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
      const count = () => growth.push(document.querySelectorAll("#tokens .tok").length);
      new MutationObserver(count).observe(document.getElementById("tokens"), { childList: true });
    },
    /** Puts a hostile text wherever texts of the cell go. */
    async hurtBy(text) {
      const { Answer } = await import("/live/page/answer.js");
      const { showRound } = await import("/live/page/round.js");
      const answer = new Answer(() => {});
      answer.clear("");
      const ms = { round: 1, draft: 0, draft_pass: 0, verify: 0, verify_pass: 0 };
      const sums = { sequences: 1, drafted: 1, verified: 1, tokens: 2, committed: 1, budget: null, plain: false, probe: false };
      const slot = { id: 1, text, confidence: 0.5, survival: 0.5, gain: 0.5, fate: "rejected" };
      const told = { lane: text, round: 1, policy: text, drafter: text, empty_because: text, asked: 1, prefix: 1, accepted: 0 };
      answer.add({
        type: "round",
        tokens: [{ id: 1, text, origin: "corrected" }],
        told: { ...told, why: "whole", price: null, slots: [slot], cohort: { ...sums, late: [text], ms }, rates: null },
      });
      showRound(answer.rounds, 0);
    },
    /** A round in which some slots were accepted, one was not, and some were not verified, if there is one. */
    busiestRound() {
      const most = Number(document.getElementById("which").max);
      let best = [0, 1];
      for (let number = 1; number <= most; number += 1) {
        this.slide("which", number);
        const fates = new Set([...document.querySelectorAll("#block tr[data-fate]")].map((row) => row.dataset.fate));
        const count = document.querySelectorAll("#block tr[data-fate]").length;
        best = [[10 * fates.size + count, number], best].sort((one, other) => other[0] - one[0])[0];
      }
      return best[1];
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
