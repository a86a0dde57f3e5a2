// Speed-up against draft length, its optimum, and a map of S over acceptance and draft length.

export const MOST = 63; // a verify of 64 positions is the longest that is recorded
export const LEAST_GAIN = 1e-9; // what a longer draft must gain to be called better
export const AXES = [8, 16, 32, MOST]; // where the axis of kappa may end
export const ALPHAS = Array.from({ length: 14 }, (_, i) => (95 - 5 * i) / 100); // rows of the map
export const LENGTHS = Array.from({ length: 12 }, (_, i) => i + 1); // columns of the map

// Time of a verify over a plain step's; `curve` is [[positions, time], ...], or null if it is free.
export function verifyCost(curve, kappa) {
  if (!curve) return 1;
  const after = curve.findIndex(([positions]) => positions >= kappa + 1);
  if (after < 0) return curve[curve.length - 1][1];
  if (after === 0) return curve[0][1];
  const [[a, low], [b, high]] = [curve[after - 1], curve[after]];
  return low + ((kappa + 1 - a) / (b - a)) * (high - low);
}

export function speedupOf({ alpha, kappa, c, curve }) {
  return expectedTokens(alpha, kappa) / (kappa * c + verifyCost(curve, kappa));
}

// The least draft length with the largest S. All are tried: a measured S may have several tops.
export function bestKappa({ alpha, c, curve }) {
  let [best, top] = [0, -1];
  for (let kappa = 0; kappa <= MOST; kappa++) {
    const gain = speedupOf({ alpha, kappa, c, curve });
    if (gain > top + LEAST_GAIN) [best, top] = [kappa, gain];
  }
  return best;
}

// The acceptance at which S is 1, or null where even perfect drafts lose.
export function breakEvenAlpha({ kappa, c, curve }) {
  if (speedupOf({ alpha: 1, kappa, c, curve }) < 1) return null;
  let [low, high] = [0, 1];
  for (let i = 0; i < 60; i++) {
    const middle = (low + high) / 2;
    if (speedupOf({ alpha: middle, kappa, c, curve }) < 1) low = middle;
    else high = middle;
  }
  return high;
}

// What the figure says of its state.
export function pointOf({ alpha, c, curve }) {
  const kappa = bestKappa({ alpha, c, curve });
  const at = (length) => speedupOf({ alpha, kappa: length, c, curve });
  return {
    kappa,
    best: at(kappa),
    doubled: 2 * kappa <= MOST ? at(2 * kappa) : null,
    even: breakEvenAlpha({ kappa: Math.max(1, kappa), c, curve }),
  };
}

const TRAITS = ["alpha", "c", "curves", "verify"];

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const row = controls(el);
    const two = (value) => value.toFixed(2);
    const three = (value) => value.toFixed(3);
    slider(row, model, "alpha", "acceptance α", { min: 0, max: 1, step: 0.01, show: two });
    slider(row, model, "c", "draft cost c", { min: 0, max: 1, step: 0.005, show: three });
    const names = Object.keys(model.get("curves"));
    if (names.length > 0) {
      choice(row, model, "verify", "A verify", [
        ["free", "is free: as long as a plain step"],
        ...names.map((name) => [name, "measured: " + name]),
      ]);
    }
    const read = readout(el);
    const panels = tag("div", { class: "sf-panels" }, el);
    const [first, second] = [tag("div", {}, panels), tag("div", {}, panels)];

    // As wide as its place, so that the text need not shrink on a phone.
    const place = (el.clientWidth || 660) - 26;
    const width = Math.max(280, Math.min(400, place > 600 ? (place - 24) / 2 : place));
    const [left, right, top, bottom] = [34, 8, 32, 226];
    const height = 264;
    const space = drawing(first, width, height, "speed-up against drafts a step");
    const map = drawing(second, width, height, "map of the speed-up: acceptance by drafts a step");

    return watch(model, TRAITS, () => {
      const [alpha, c, verify] = ["alpha", "c", "verify"].map((name) => model.get(name));
      const curve = verify === "free" ? null : model.get("curves")[verify];
      const found = pointOf({ alpha, c, curve });
      drawLine({ alpha, c, curve }, found);
      drawMap({ alpha, c, curve });
      tell(found, verify);
    });

    function drawLine({ alpha, c, curve }, found) {
      space.replaceChildren();
      const last = AXES.find((end) => end >= 2 * found.kappa) ?? MOST;
      const gains = Array.from({ length: last + 1 }, (_, kappa) =>
        speedupOf({ alpha, kappa, c, curve }),
      );
      const high = Math.max(1.5, 1.12 * Math.max(...gains));
      const x = (kappa) => left + (kappa / last) * (width - left - right);
      const y = (gain) => bottom - (gain / high) * (bottom - top);
      const text = (at, words, anchor = "middle") =>
        svg("text", { ...at, "text-anchor": anchor }, space, words);
      text({ x: 4, y: 14 }, "speed-up S", "start");
      const unit = [0.5, 1, 2, 5, 10, 20].find((step) => high / step <= 6) ?? 20;
      for (let gain = 0; gain <= high; gain += unit) {
        const line = { d: `M${left},${y(gain)}H${width - right}`, stroke: "var(--soft)" };
        svg("path", line, space);
        text({ x: left - 5, y: y(gain) + 4 }, String(gain), "end");
      }
      for (let kappa = 0; kappa <= last; kappa += last > 32 ? 8 : last / 8) {
        text({ x: x(kappa), y: bottom + 16 }, String(kappa));
      }
      text({ x: (left + width - right) / 2, y: height - 6 }, "drafts κ");
      const even = { d: `M${left},${y(1)}H${width - right}`, "stroke-dasharray": "4 4" };
      svg("path", { ...even, stroke: "currentColor", fill: "none" }, space);
      const path = gains.map((gain, kappa) => `${kappa ? "L" : "M"}${x(kappa)},${y(gain)}`).join("");
      svg("path", { d: path, fill: "none", "stroke-width": 2, style: "stroke: var(--p)" }, space);
      gains.forEach((gain, kappa) => {
        const best = kappa === found.kappa;
        const style = `fill: var(${best ? "--r" : "--p"})`;
        const dot = svg("circle", { cx: x(kappa), cy: y(gain), r: best ? 6 : 3, style }, space);
        svg("title", {}, dot, `κ = ${kappa}: S = ${gain.toFixed(3)}`);
      });
      const anchor = found.kappa > 0.7 * last ? "end" : found.kappa < 0.2 * last ? "start" : "middle";
      text({ x: x(found.kappa), y: y(found.best) - 10 }, `κ = ${found.kappa}`, anchor);
    }

    function drawMap({ alpha, c, curve }) {
      map.replaceChildren();
      const [wide, tall] = [
        (width - left - right) / LENGTHS.length,
        (bottom - top) / ALPHAS.length,
      ];
      const x = (column) => left + column * wide;
      const y = (line) => top + line * tall;
      const text = (at, words, anchor = "middle") =>
        svg("text", { ...at, "text-anchor": anchor }, map, words);
      text({ x: 4, y: 14 }, "acceptance α", "start");
      const nearest = ALPHAS.reduce((a, b) => (Math.abs(b - alpha) < Math.abs(a - alpha) ? b : a));
      let border = "";
      ALPHAS.forEach((row, line) => {
        const gains = LENGTHS.map((kappa) => speedupOf({ alpha: row, kappa, c, curve }));
        if (line % 2 === 1 || row === nearest) {
          const at = { x: left - 5, y: y(line) + tall / 2 + 4 };
          if (row === nearest || Math.abs(row - nearest) > 0.06) text(at, row.toFixed(2), "end");
        }
        const best = bestKappa({ alpha: row, c, curve });
        gains.forEach((gain, column) => {
          const colour = gain >= 1 ? "--r" : "--no";
          const strength = Math.min(1, Math.abs(Math.log2(gain)) / 2);
          const style = `fill: var(${colour}); fill-opacity: ${(0.08 + 0.8 * strength).toFixed(2)}`;
          const box = { x: x(column), y: y(line), width: wide, height: tall, style };
          const cell = svg("rect", box, map);
          svg("title", {}, cell, `α = ${row}, κ = ${column + 1}: S = ${gain.toFixed(2)}`);
          // A border wherever one side gains and the other does not.
          const gainsAt = (a, k) => speedupOf({ alpha: a, kappa: k, c, curve }) >= 1;
          const here = gain >= 1;
          if (column + 1 < LENGTHS.length && gainsAt(row, column + 2) !== here)
            border += `M${x(column + 1)},${y(line)}v${tall}`;
          if (line + 1 < ALPHAS.length && gainsAt(ALPHAS[line + 1], column + 1) !== here)
            border += `M${x(column)},${y(line + 1)}h${wide}`;
        });
        if (best >= 1 && best <= LENGTHS.length) {
          const at = { cx: x(best - 1) + wide / 2, cy: y(line) + tall / 2, r: 4 };
          svg("circle", { ...at, fill: "currentColor" }, map);
        }
        if (row === nearest) {
          const box = { x: left, y: y(line), width: wide * LENGTHS.length, height: tall };
          svg("rect", { ...box, fill: "none", stroke: "currentColor" }, map);
        }
      });
      const style = { stroke: "currentColor", "stroke-width": 2.5, fill: "none" };
      if (border) svg("path", { d: border, "data-border": "", ...style }, map);
      LENGTHS.forEach((kappa, column) => text({ x: x(column) + wide / 2, y: bottom + 16 }, kappa));
      text({ x: (left + width - right) / 2, y: height - 6 }, "drafts κ");
    }

    function tell({ kappa, best, doubled, even }, verify) {
      read.replaceChildren();
      const least = kappa === MOST ? " or more" : "";
      const verdict = kappa > 0 ? "sf-good" : "sf-bad";
      const words = kappa > 0 ? `Best κ = ${kappa}${least}, S = ${best.toFixed(3)}.` : "No draft pays.";
      tag("strong", { class: verdict }, read, words);
      const drafts = Math.max(1, kappa);
      const name = `${drafts} draft${drafts > 1 ? "s" : ""}`;
      read.append(
        even === null
          ? ` With ${name} even α = 1 would lose.`
          : ` ${name} break${drafts > 1 ? "" : "s"} even at α* = ${even.toFixed(3)}.`,
      );
      if (kappa > 0 && doubled !== null) {
        read.append(` At κ = ${2 * kappa}: S = ${doubled.toFixed(3)}.`);
      }
      const kind = verify === "free" ? "Modelled" : "Modelled, with a measured verify";
      read.append(` ${kind}. In the map: green gains, red loses, the thick line between; dots are the best κ.`);
      el.dataset.kappa = kappa;
      el.dataset.best = best;
      el.dataset.even = even ?? "none";
      el.dataset.doubled = doubled ?? "none";
      el.dataset.verify = verify;
    }
  },
};
