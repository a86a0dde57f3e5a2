// The speed-up against the number of requests: three regimes and the crossing.

// Tokens of a step on average: 1 + alpha + ... + alpha^kappa.
export const yieldOf = (alpha, kappa) =>
  Array.from({ length: kappa + 1 }, (_, i) => alpha ** i).reduce((sum, power) => sum + power, 0);

// Time of a step of so many positions over one bound by memory.
export const stepCost = (positions, ridge) => Math.max(1, positions / ridge);

// S(B); `own` is the draft's ridge, where it is not the target's.
export function batchSpeedup(batch, { alpha, kappa, c, ridge, own = ridge }) {
  const draft = kappa * c * stepCost(batch, own);
  const verify = stepCost(batch * (kappa + 1), ridge);
  return (yieldOf(alpha, kappa) * stepCost(batch, ridge)) / (draft + verify);
}

export function regimeOf(batch, { kappa, ridge }) {
  if (batch >= ridge) return "arithmetic";
  return batch * (kappa + 1) <= ridge ? "memory" : "verify";
}

// The batch above which speculation loses: null where it always does, Infinity where it never does.
export function crossingOf(setting) {
  const lost = (batch) => batchSpeedup(batch, setting) < 1 - 1e-12;
  if (lost(1)) return null;
  let [low, high] = [1, Math.max(2, 2 * setting.ridge)];
  if (!lost(high)) return Infinity; // S never falls again behind the ridge
  for (let i = 0; i < 60; i++) {
    const middle = (low + high) / 2;
    if (lost(middle)) high = middle;
    else low = middle;
  }
  return high;
}

// The number of drafts that is fastest at a batch; the fewest where several are.
export function bestKappa(batch, setting, most = 8) {
  let [best, gain] = [0, 1];
  for (let kappa = 1; kappa <= most; kappa++) {
    const found = batchSpeedup(batch, { ...setting, kappa });
    if (found > gain + 1e-12) [best, gain] = [kappa, found];
  }
  return best;
}

export const BATCHES = [
  1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 74, 80, 96, 112, 128, 144,
  150, 160, 192, 224, 256, 295, 320, 384, 448, 512, 640, 768, 896, 1024,
];

const REGIMES = {
  memory: "bound by memory: the verify is free",
  verify: "the verify is bound by arithmetic, plain decoding is not",
  arithmetic: "all passes are bound by arithmetic",
};
const TRAITS = ["machine", "pair", "alpha", "kappa", "batch"];

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    tag("strong", {}, el, "Speed-up against the number of requests (modelled)");
    const names = (trait) => Object.keys(model.get(trait)).map((name) => [name, name]);
    const what = controls(el);
    choice(what, model, "machine", "Processor", names("ridges"));
    choice(what, model, "pair", "Target and draft", names("pairs"));
    const row = controls(el);
    const two = (value) => value.toFixed(2);
    slider(row, model, "alpha", "acceptance α", { min: 0, max: 1, step: 0.01, show: two });
    slider(row, model, "kappa", "drafts κ", { min: 1, max: 8 });
    // As wide as its place, so that the text need not shrink on a phone.
    const width = Math.max(280, Math.min(640, (el.clientWidth || 626) - 26));
    const [height, left, right, top, bottom] = [286, 36, 18, 40, 240];
    const space = drawing(el, width, height, "speed-up against the number of requests");
    const under = svg("g", {}, space);
    const handle = svg(
      "g",
      { class: "sf-bar", role: "slider", tabindex: 0, "aria-label": "requests B" },
      space,
    );
    handle.style.cursor = "ew-resize";
    const read = readout(el);

    const most = 1024;
    const x = (batch) => left + (Math.log2(batch) / Math.log2(most)) * (width - left - right);
    const put = (batch) => set(model, "batch", Math.max(1, Math.min(most, Math.round(batch))));
    const rung = (batch, by) => {
      const above = BATCHES.findIndex((value) => value > batch);
      const below = BATCHES.findLastIndex((value) => value < batch);
      return BATCHES[by > 0 ? (above < 0 ? BATCHES.length - 1 : above) : Math.max(0, below)];
    };
    handle.addEventListener("keydown", (event) => {
      const now = model.get("batch");
      const moves = {
        ArrowRight: now + 1,
        ArrowUp: now + 1,
        ArrowLeft: now - 1,
        ArrowDown: now - 1,
        PageUp: rung(now, 1),
        PageDown: rung(now, -1),
        Home: 1,
        End: most,
      };
      if (!(event.key in moves)) return;
      put(moves[event.key]);
      event.preventDefault();
    });
    const drag = (event) => {
      const box = space.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * width;
      put(2 ** (((at - left) / (width - left - right)) * Math.log2(most)));
    };
    space.style.touchAction = "pan-y";
    draggable(space, handle, drag);

    return watch(model, TRAITS, () => {
      const state = Object.fromEntries(TRAITS.map((name) => [name, model.get(name)]));
      const ridge = model.get("ridges")[state.machine];
      const pair = model.get("pairs")[state.pair];
      const { alpha, kappa, batch } = state;
      const setting = { alpha, kappa, c: pair.c, ridge, own: ridge * pair.ridge };
      const found = {
        speedup: batchSpeedup(batch, setting),
        crossing: crossingOf(setting),
        best: bestKappa(batch, setting),
        regime: regimeOf(batch, setting),
      };
      draw(setting, batch, found);
      tell(setting, batch, found);
    });

    function draw(setting, batch, { speedup, crossing }) {
      under.replaceChildren();
      handle.replaceChildren();
      const { kappa, ridge } = setting;
      const high = Math.max(1.5, Math.ceil(2 * batchSpeedup(1, setting) + 0.2) / 2);
      const y = (value) => bottom - (value / high) * (bottom - top);
      const clamp = (value) => Math.min(most, Math.max(1, value));
      const borders = [1, clamp(ridge / (kappa + 1)), clamp(ridge), most];
      ["memory", "verify", "arithmetic"].forEach((name, i) => {
        const [from, to] = [x(borders[i]), x(borders[i + 1])];
        if (to <= from) return;
        const band = { x: from, y: top, width: to - from, height: bottom - top };
        const fill = `fill: ${["var(--p)", "var(--q)", "var(--no)"][i]}; opacity: 0.12`;
        svg("rect", { ...band, style: fill }, under);
        const words = ["memory", "verify", "arithmetic"][i];
        const at = { x: (from + to) / 2, y: top - 8 - 15 * (i % 2), "text-anchor": "middle" };
        svg("text", at, under, words);
      });
      for (const power of [1, 4, 16, 64, 256, 1024]) {
        const at = { x: x(power), y: bottom + 16, "text-anchor": "middle" };
        svg("text", at, under, String(power));
      }
      for (let value = 0; value <= high; value += 0.5) {
        const line = { d: `M${left},${y(value)}H${width - right}`, stroke: "var(--soft)" };
        svg("path", { ...line, fill: "none" }, under);
        const at = { x: left - 6, y: y(value) + 4, "text-anchor": "end" };
        svg("text", at, under, value.toFixed(1));
      }
      const one = { stroke: "currentColor", "stroke-dasharray": "5 3", fill: "none" };
      svg("path", { d: `M${left},${y(1)}H${width - right}`, ...one }, under);
      const middle = { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" };
      svg("text", middle, under, "requests at once, B");
      const points = Array.from({ length: 241 }, (_, i) => most ** (i / 240));
      const path = points.map((b) => `${x(b)},${y(batchSpeedup(b, setting))}`).join("L");
      const line = { d: `M${path}`, fill: "none", "stroke-width": 2.5, style: "stroke: var(--p)" };
      svg("path", line, under);
      if (crossing !== null && crossing <= most) {
        const cross = { cx: x(crossing), cy: y(1), r: 5, style: "fill: var(--no)" };
        svg("title", {}, svg("circle", cross, under), `crossing at ${crossing.toFixed(1)}`);
      }
      const stem = { d: `M${x(batch)},${top}V${bottom}`, stroke: "currentColor" };
      svg("path", { ...stem, "stroke-width": 1.5 }, handle);
      svg("circle", { cx: x(batch), cy: y(speedup), r: 7, style: "fill: var(--p)" }, handle);
      svg("rect", { x: x(batch) - 12, y: top, width: 24, height: bottom - top, fill: "transparent" },
        handle);
      const values = { now: batch, min: 1, max: most, text: `${batch} requests` };
      for (const [name, value] of Object.entries(values))
        handle.setAttribute("aria-value" + name, value);
    }

    function tell(setting, batch, { speedup, crossing, best, regime }) {
      read.replaceChildren();
      const change = Math.abs(100 * (speedup - 1)).toFixed(0);
      const gain = speedup >= 1;
      const words = gain ? `${change} % faster` : `${change} % slower`;
      tag("strong", {}, read, `B = ${batch}: `);
      const mark = tag("span", { class: gain ? "sf-good" : "sf-bad" }, read);
      mark.textContent = `S = ${speedup.toFixed(3)}, ${words} than plain decoding`;
      const where =
        crossing === null
          ? "It loses at every batch."
          : crossing === Infinity
            ? "It never loses."
            : `It loses above ${crossing.toFixed(1)} requests.`;
      const { kappa, ridge, c } = setting;
      read.append(
        `; ${REGIMES[regime]}. ${where} ` +
          `Borders at T*/(κ + 1) = ${(ridge / (kappa + 1)).toFixed(1)} and T* = ` +
          `${ridge.toFixed(1)}; c = ${c.toFixed(3)}. ` +
          (best ? `Fastest here: ${best} draft${best > 1 ? "s" : ""}.` : "Fastest here: no drafts."),
      );
      el.dataset.speedup = speedup;
      el.dataset.regime = regime;
      el.dataset.crossing = crossing;
      el.dataset.best = best;
      el.dataset.batch = batch;
    }
  },
};
