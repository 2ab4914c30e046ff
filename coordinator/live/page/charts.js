// Two drawings: drafted and verified tokens under the load of the last minute, and what one more
// token brings.

import { draw } from "./dom.js";
import { number, percent } from "./words.js";

const FRAMES = 240; // of a quarter of a second
const SMOOTH = 4; // frames that a mean is taken over
const LABEL_EVERY = 8; // frames between two descriptions for those who do not see the drawing

/** Sums over lanes and over the frames since `from`. */
function sums(frames) {
  const total = { turns: 0, drafted: 0, verified: 0 };
  for (const frame of frames)
    for (const lane of frame.lanes)
      for (const name of Object.keys(total)) total[name] += lane[name];
  return total;
}

export class History {
  constructor(box) {
    this.box = box;
    this.frames = [];
    this.points = [];
    this.count = 0;
  }

  add(frame) {
    this.frames = [...this.frames.slice(-(SMOOTH - 1)), frame];
    const sum = sums(this.frames);
    const load = frame.lanes.reduce((all, lane) => all + lane.running, 0);
    this.points.push({
      load,
      drafted: sum.turns ? sum.drafted / sum.turns : null,
      verified: sum.turns ? sum.verified / sum.turns : null,
      plain: sum.turns > 0 && sum.drafted < sum.turns / 2,
    });
    if (this.points.length > FRAMES) this.points.shift();
    this.count += 1;
    this.paint();
  }

  paint() {
    const width = Math.max(this.box.clientWidth, 260);
    const [left, right, top, split, bottom] = [4, 92, 26, 84, 216];
    const inner = width - left - right;
    const x = (place) => left + inner * (1 - (this.points.length - 1 - place) / (FRAMES - 1));
    const most = Math.max(4, ...this.points.map((point) => point.load));
    const deepest = (point) => Math.max(point.drafted ?? 0, point.verified ?? 0);
    const deep = Math.max(4, ...this.points.map(deepest));
    const yLoad = (value) => split - (split - top) * (value / most);
    const yDeep = (value) => bottom - (bottom - split - 26) * (value / deep);
    const now = this.points.at(-1);
    const last = [...this.points].reverse().find((point) => point.verified !== null);
    const viewBox = `0 0 ${width} 240`;
    const art = draw("svg", { viewBox, width, height: 240, "aria-hidden": "true" });
    const loaded = (point) => yLoad(point.load);
    const drafted = (point) => height(point.drafted, yDeep);
    const verified = (point) => height(point.verified, yDeep);
    art.append(
      ...this.bands(x, split + 26, bottom),
      draw("path", { class: "load-area", d: area(this.points, x, loaded, split) }),
      draw("path", { class: "load-line", d: line(this.points, x, loaded) }),
      draw("line", { class: "axis", x1: left, x2: left + inner, y1: split, y2: split }),
      draw("path", { class: "verified-area", d: area(this.points, x, verified, bottom) }),
      draw("path", { class: "drafted-line", d: line(this.points, x, drafted) }),
      draw("path", { class: "verified-line", d: line(this.points, x, verified) }),
      draw("line", { class: "axis", x1: left, x2: left + inner, y1: bottom, y2: bottom }),
      draw("text", { x: left, y: 11 }, "answers running"),
      draw("text", { x: left, y: split + 18 }, "tokens per answer and round"),
      draw("text", { x: left, y: bottom + 16 }, "a minute ago"),
      draw("text", { x: left + inner, y: bottom + 16, "text-anchor": "end" }, "now"),
    );
    const peak = this.points.findIndex((point) => point.load === most);
    if (peak >= 0 && most > (now?.load ?? 0))
      art.append(
        draw("text", { x: x(peak) - 5, y: top + 4, "text-anchor": "end" }, String(most)),
      );
    const beside = left + inner + 8;
    if (now) {
      const y = clamp(yLoad(now.load) + 4, 14, split);
      art.append(draw("text", { class: "now", x: beside, y }, String(now.load)));
    }
    if (last) {
      const [high, low] = apart(yDeep(last.drafted), yDeep(last.verified), bottom);
      const checked = `${number(last.verified, 1)} verified`;
      art.append(
        draw("text", { x: beside, y: high + 4 }, `${number(last.drafted, 1)} drafted`),
        draw("text", { class: "now", x: beside, y: low + 4 }, checked),
      );
    }
    this.box.replaceChildren(art);
    if (this.count % LABEL_EVERY === 1) this.describe(now, last);
  }

  /** Stretches without drafts. */
  bands(x, top, bottom) {
    const bands = [];
    let from = null;
    this.points.forEach((point, place) => {
      if (point.plain && from === null) from = place;
      if (from !== null && (!point.plain || place === this.points.length - 1)) {
        const width = Math.max(x(place) - x(from), 1);
        const shape = { x: x(from), y: top, width, height: bottom - top };
        bands.push(draw("rect", { class: "plain-band", ...shape }));
        from = null;
      }
    });
    return bands;
  }

  describe(now, last) {
    const load = now ? `${now.load} answers running` : "nothing runs";
    const deep = last
      ? `; ${number(last.verified, 1)} of ${number(last.drafted, 1)} drafted tokens verified` +
        " per answer and round"
      : "";
    this.box.setAttribute(
      "aria-label",
      `Drafting under load over the last minute. Now ${load}${deep}.`,
    );
  }
}

export class Curve {
  constructor(box) {
    this.box = box;
    this.count = 0;
  }

  show(rates) {
    const width = Math.max(this.box.clientWidth, 240);
    const [left, right, top, bottom] = [4, 12, 30, 176];
    const points = rates.points;
    const most = points.at(-1)[0] || 1;
    const values = points.map(([, rate]) => rate);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const span = Math.max(high - low, 0.04 * high);
    const x = (slots) => left + (width - left - right) * (slots / most);
    const y = (rate) => bottom - 14 - (bottom - top - 14) * ((rate - low) / span);
    const chosen = points.find(([slots]) => slots === rates.chosen) ?? points[0];
    const [cx, cy] = [x(chosen[0]), y(chosen[1])];
    const gain = chosen[1] / points[0][1] - 1;
    const anchor = cx > 0.62 * width ? "end" : cx < 0.3 * width ? "start" : "middle";
    const path = line(points, (place) => x(points[place][0]), ([, rate]) => y(rate));
    const art = draw(
      "svg",
      { viewBox: `0 0 ${width} 212`, width, height: 212, "aria-hidden": "true" },
      draw("path", { class: "rate-area", d: `${path}L${x(most)},${bottom}L${left},${bottom}Z` }),
      draw("path", { class: "rate-line", d: path }),
      draw("line", { class: "drop", x1: cx, x2: cx, y1: cy, y2: bottom }),
      draw("line", { class: "axis", x1: left, x2: width - right, y1: bottom, y2: bottom }),
      draw("circle", { class: "chosen", cx, cy, r: 5 }),
      draw(
        "text",
        { class: "now", x: cx, y: cy - 14, "text-anchor": anchor },
        `${number(chosen[1])} per second`,
      ),
      draw("text", { x: left, y: bottom + 16 }, "0"),
      draw(
        "text",
        { x: width - right, y: bottom + 16, "text-anchor": "end" },
        most === 1 ? "1 token" : `${most} tokens`,
      ),
    );
    if (cx > 60 && cx < width - 90) {
      const place = { x: cx, y: bottom + 16, "text-anchor": "middle" };
      art.append(draw("text", { class: "now", ...place }, String(chosen[0])));
    }
    this.box.replaceChildren(art);
    this.count += 1;
    if (this.count % LABEL_EVERY === 1) {
      const than = gain > 0.005 ? `, ${percent(gain)} more than without drafts` : "";
      this.box.setAttribute(
        "aria-label",
        `The newest round verifies ${chosen[0]} of ${most} drafted tokens and expects ` +
          `${number(chosen[1])} tokens per second${than}.`,
      );
    }
    return { chosen: chosen[0], most, gain };
  }
}

function line(points, x, y) {
  let path = "";
  let open = false;
  points.forEach((point, place) => {
    const at = y(point);
    if (at === null) open = false;
    else {
      path += `${open ? "L" : "M"}${x(place).toFixed(1)},${at.toFixed(1)}`;
      open = true;
    }
  });
  return path;
}

function area(points, x, y, base) {
  let path = "";
  let from = null;
  points.forEach((point, place) => {
    const at = y(point);
    if (at !== null) {
      const here = `L${x(place).toFixed(1)},${at.toFixed(1)}`;
      path += from === null ? `M${x(place).toFixed(1)},${base}${here}` : here;
      from = place;
    }
    if (from !== null && (at === null || place === points.length - 1)) {
      path += `L${x(at === null ? place - 1 : place).toFixed(1)},${base}Z`;
      from = null;
    }
  });
  return path;
}

const height = (value, y) => (value === null ? null : y(value));
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** Two label heights that do not overlap. */
function apart(first, second, bottom) {
  if (second - first >= 15) return [first, Math.min(second, bottom - 2)];
  const low = Math.min(Math.max(second, first + 15), bottom - 2);
  return [low - 15, low];
}
