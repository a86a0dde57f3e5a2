// A step on the roofline: intensity, time and bound, from a model's counts and a machine's peaks.

// One step's bytes, FLOPs and time. `counts` and `peaks` are entries of the figure's two tables.
export function stepOf(counts, peaks, { positions, context, bits, batch }) {
  const [requests, each] = batch ? [positions, 1] : [1, positions];
  const stored = bits / 8;
  const bytes =
    counts.params * stored +
    requests * context * counts.kv +
    positions * (counts.kv + counts.position);
  const attended = context + (each + 1) / 2; // on average over a request's positions
  const flops = positions * (counts.flops + attended * counts.attention);
  const [memory, arithmetic] = [bytes / peaks.bandwidth, flops / peaks.peak];
  const ridge = peaks.peak / peaks.bandwidth; // FLOP/byte
  return {
    bytes,
    flops,
    memory,
    arithmetic,
    ridge,
    intensity: flops / bytes,
    seconds: Math.max(memory, arithmetic),
    bound: memory > arithmetic ? "memory" : "arithmetic",
    ideal: (2 * positions) / stored,
    ridgePositions: (ridge * stored) / 2,
  };
}

export const POSITIONS = [
  1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 224, 256, 295,
  320, 384, 448, 512, 640, 768, 896, 1024,
];
export const CONTEXTS = [
  0, 256, 512, 1024, 2048, 2337, 4096, 8192, 16384, 32768, 65536, 131072,
];

// A time with three figures, in the unit that suits it.
export function time(seconds) {
  const [unit, factor] = seconds < 1e-3 ? ["µs", 1e6] : seconds < 1 ? ["ms", 1e3] : ["s", 1];
  return `${(seconds * factor).toPrecision(3)} ${unit}`;
}

const TRAITS = ["model", "machine", "positions", "context", "bits", "batch"];

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const names = (trait) => Object.keys(model.get(trait)).map((name) => [name, name]);
    const what = controls(el);
    choice(what, model, "model", "Model", names("models"));
    choice(what, model, "machine", "Processor", names("machines"));
    choice(what, model, "bits", "Weights in", [
      ["16", "16 bits"],
      ["8", "8 bits"],
      ["4", "4 bits"],
    ]);
    const row = controls(el);
    const count = (value) => value.toLocaleString("en");
    ladder(row, model, "positions", "positions T", POSITIONS, count);
    ladder(row, model, "context", "tokens of context", CONTEXTS, count);
    checkbox(row, model, "batch", "one position of each of T requests");

    // As wide as its place, so that the text need not shrink on a phone.
    const width = Math.max(280, Math.min(560, (el.clientWidth || 544) - 26));
    const [height, left, right, top, bottom] = [270, 48, 10, 14, 226];
    const label = "roofline: attainable arithmetic against intensity, both axes logarithmic";
    const space = drawing(el, width, height, label);
    const read = readout(el);

    const [xLow, xHigh, yLow, yHigh] = [-0.3, 3.6, 11, 15.3]; // powers of ten
    const x = (value) =>
      left + ((Math.log10(value) - xLow) / (xHigh - xLow)) * (width - left - right);
    const y = (value) =>
      bottom - ((Math.log10(value) - yLow) / (yHigh - yLow)) * (bottom - top);

    return watch(model, TRAITS, () => {
      const state = Object.fromEntries(TRAITS.map((name) => [name, model.get(name)]));
      const peaks = model.get("machines")[state.machine];
      const step = stepOf(model.get("models")[state.model], peaks, {
        ...state,
        bits: Number(state.bits),
      });
      draw(step, peaks);
      tell(step, state);
    });

    function draw(step, peaks) {
      space.replaceChildren();
      const roof = (value) => Math.min(peaks.peak, value * peaks.bandwidth);
      const grid = { stroke: "var(--soft)", fill: "none" };
      for (const power of [0, 1, 2, 3]) {
        const at = x(10 ** power);
        svg("path", { d: `M${at},${top}V${bottom}`, ...grid }, space);
        const text = { x: at, y: bottom + 16, "text-anchor": "middle" };
        svg("text", text, space, `${10 ** power}`);
      }
      for (const power of [11, 12, 13, 14, 15]) {
        const at = y(10 ** power);
        svg("path", { d: `M${left},${at}H${width - right}`, ...grid }, space);
        const text = { x: left - 6, y: at + 4, "text-anchor": "end" };
        svg("text", text, space, `${10 ** (power - 12)}`);
      }
      const middle = (left + width - right) / 2;
      const axis = { x: middle, y: height - 8, "text-anchor": "middle" };
      svg("text", axis, space, "intensity, FLOP/byte");
      svg("text", { x: left + 6, y: top + 10 }, space, "TFLOP/s");
      const [low, high] = [10 ** xLow, 10 ** xHigh];
      const line =
        `M${x(low)},${y(roof(low))}L${x(step.ridge)},${y(peaks.peak)}` +
        `L${x(high)},${y(peaks.peak)}`;
      svg("path", { d: line, fill: "none", stroke: "currentColor", "stroke-width": 2 }, space);
      const dash = { stroke: "currentColor", "stroke-dasharray": "4 4", fill: "none" };
      svg("path", { d: `M${x(step.ridge)},${y(peaks.peak)}V${bottom}`, ...dash }, space);
      const ridge = { x: x(step.ridge) - 6, y: bottom - 8, "text-anchor": "end" };
      svg("text", ridge, space, `ridge ${step.ridge.toFixed(1)} FLOP/byte`);
      const clamp = (value) => Math.min(high, Math.max(low, value));
      const dot = (value, radius, fill, title) => {
        const at = { cx: x(clamp(value)), cy: y(roof(clamp(value))), r: radius, "stroke-width": 2 };
        const style = `fill: ${fill}; stroke: var(--p)`;
        svg("title", {}, svg("circle", { ...at, style }, space), title);
      };
      dot(step.ideal, 8, "none", "weights only");
      dot(step.intensity, 5, "var(--p)", "with cache, activations and logits");
    }

    function tell(step, { positions, bits }) {
      const busy = (100 * step.arithmetic) / step.seconds;
      const share = busy > 99 ? "100" : busy.toPrecision(2);
      read.replaceChildren();
      tag("strong", {}, read, `${time(step.seconds)} a step, bound by ${step.bound}.`);
      read.append(
        ` Intensity ${step.intensity.toPrecision(3)} FLOP/byte (dot), ` +
          `${step.ideal.toPrecision(3)} if only weights moved (ring). ` +
          `Moving ${(step.bytes / 1e9).toPrecision(4)} GB takes ${time(step.memory)}, ` +
          `arithmetic ${time(step.arithmetic)}: ${share} % of the step. ` +
          `With ${bits}-bit weights the ridge is T* = ${step.ridgePositions.toFixed(1)} positions. ` +
          "Modelled, at peak rates.",
      );
      el.dataset.seconds = step.seconds;
      el.dataset.intensity = step.intensity;
      el.dataset.ideal = step.ideal;
      el.dataset.bound = step.bound;
      el.dataset.ridge = step.ridgePositions;
      el.dataset.positions = positions;
    }
  },
};
