// Thresholds: the law of the emitted token as acceptance is raised, and what that costs.

// The chance of each id to be drafted and accepted.
export function acceptedMasses(p, q, single, acc) {
  return p.map((mass, i) => (mass >= single ? q[i] : Math.min(q[i], mass / acc)));
}

// Acceptance, the one without thresholds, the bias, and the emitted law.
export function pointOf({ p, q, single, acc }) {
  const add = (values) => values.reduce((a, b) => a + b, 0);
  const accepted = acceptedMasses(p, q, single, acc);
  const left = p.map((mass, i) => Math.max(0, mass - q[i]));
  const refused = (1 - add(accepted)) / add(left);
  const law = accepted.map((mass, i) => mass + refused * left[i]);
  return {
    acceptance: add(accepted),
    exact: add(p.map((mass, i) => Math.min(mass, q[i]))),
    bias: add(law.map((mass, i) => Math.abs(mass - p[i]))) / 2,
    law,
  };
}

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const row = controls(el);
    const two = (value) => value.toFixed(2);
    choice(row, model, "pair", "with", Object.keys(model.get("pairs")).map((name) => [name, name]));
    const range = { min: 0.01, max: 1, step: 0.01, show: two };
    slider(row, model, "single", "threshold single", range);
    slider(row, model, "acc", "threshold acc", range);
    const read = readout(el);
    const panels = tag("div", { class: "sf-panels" }, el);
    const [first, second] = [tag("div", {}, panels), tag("div", {}, panels)];
    const [width, height, left, bottom, top] = [300, 220, 40, 180, 26];
    const bars = drawing(first, width, height, "the emitted law beside the target's");
    const line = drawing(second, width, height, "total variation against acceptance");

    return watch(model, ["pair", "single", "acc"], () => {
      const [p, q] = model.get("pairs")[model.get("pair")];
      const found = pointOf({ p, q, single: model.get("single"), acc: model.get("acc") });
      drawBars(p, found.law);
      drawLine(found);
      read.textContent =
        `Acceptance ${two(found.acceptance)} instead of ${two(found.exact)}; ` +
        `the emitted law is off by ${two(found.bias)}: ` +
        (found.bias < 1e-12 ? "exact." : "each acceptance bought is paid for with as much bias.");
      el.dataset.single = model.get("single");
      el.dataset.acc = model.get("acc");
      el.dataset.bias = found.bias;
      el.dataset.acceptance = found.acceptance;
    });

    function text(space, at, words, anchor = "middle") {
      return svg("text", { ...at, "text-anchor": anchor }, space, words);
    }

    function drawBars(p, law) {
      bars.replaceChildren();
      const high = Math.max(...p, ...law, 0.5);
      const y = (mass) => bottom - (mass / high) * (bottom - top);
      const wide = (width - left) / p.length;
      text(bars, { x: 4, y: 14 }, "probability: p, and what is emitted", "start");
      p.forEach((mass, i) => {
        const x = left + i * wide;
        const pairs = [
          [mass, "--p", 0.12],
          [law[i], "--no", 0.5],
        ];
        for (const [value, colour, shift] of pairs) {
          const box = { x: x + shift * wide, y: y(value), width: 0.36 * wide };
          const style = `fill: var(${colour})`;
          const bar = svg("rect", { ...box, height: bottom - y(value), style }, bars);
          svg("title", {}, bar, `id ${i}: ${value.toFixed(3)}`);
        }
        text(bars, { x: x + wide / 2, y: bottom + 16 }, String(i));
      });
      text(bars, { x: (left + width) / 2, y: height - 6 }, "id");
      text(bars, { x: left - 4, y: y(high) + 4 }, high.toFixed(1), "end");
      text(bars, { x: left - 4, y: bottom + 4 }, "0", "end");
    }

    function drawLine({ acceptance, exact, bias }) {
      line.replaceChildren();
      const x = (value) => left + value * (width - left - 10);
      const y = (value) => bottom - value * (bottom - top);
      text(line, { x: 4, y: 14 }, "total variation from p", "start");
      const axes = `M${x(0)},${y(1)}V${y(0)}H${x(1)}`;
      svg("path", { d: axes, fill: "none", stroke: "currentColor" }, line);
      const way = `M${x(exact)},${y(0)}L${x(1)},${y(1 - exact)}`;
      svg("path", { d: way, fill: "none", "stroke-width": 2, style: "stroke: var(--q)" }, line);
      svg("circle", { cx: x(acceptance), cy: y(bias), r: 6, style: "fill: var(--no)" }, line);
      for (const value of [0, 0.5, 1]) {
        text(line, { x: x(value), y: bottom + 16 }, String(value));
        text(line, { x: left - 4, y: y(value) + 4 }, String(value), "end");
      }
      text(line, { x: (left + width) / 2, y: height - 6 }, "acceptance");
    }
  },
};
