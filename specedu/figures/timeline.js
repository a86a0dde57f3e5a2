// Plain and speculative decoding on one axis of time: a weight-streaming model, no measurement.

// What a step takes and yields, and the rates of both ways to decode, in milliseconds.
export function timelineOf({ alpha, kappa, c, target_ms: target }) {
  const step = target * (1 + kappa * c);
  const tokens = expectedTokens(alpha, kappa);
  const [plain, speculative] = [1e3 / target, (1e3 * tokens) / step];
  return { step, tokens, plain, speculative, speedup: speculative / plain };
}

// A step of the axis that gives about six marks.
export function axisStep(end) {
  const rough = end / 6;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

const TRAITS = ["alpha", "kappa", "c", "target_ms"];

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const title = "A hypothetical weight-streaming model, not a measured schedule";
    tag("strong", {}, el, title);
    const row = controls(el);
    const two = (value) => value.toFixed(2);
    slider(row, model, "alpha", "acceptance α", { min: 0, max: 1, step: 0.01, show: two });
    slider(row, model, "kappa", "drafts κ", { min: 0, max: 8 });
    const three = (value) => value.toFixed(3);
    slider(row, model, "c", "draft cost c", { min: 0, max: 1, step: 0.005, show: three });
    // As wide as its place, so that the text need not shrink on a phone.
    const width = Math.max(280, Math.min(640, (el.clientWidth || 626) - 26));
    const [height, left] = [188, 6];
    const label = "two timelines: plain decoding above, speculative decoding below";
    const space = drawing(el, width, height, label);
    const read = readout(el);

    return watch(model, TRAITS, () => {
      const state = Object.fromEntries(TRAITS.map((name) => [name, model.get(name)]));
      const result = timelineOf(state);
      draw(state, result);
      tell(state, result);
    });

    function draw({ kappa, c, target_ms: target }, { step, tokens }) {
      space.replaceChildren();
      const end = Math.max((width < 440 ? 4 : 6) * target, 2 * step) * 1.02;
      const x = (ms) => left + (ms / end) * (width - 2 * left);
      const bar = (from, length, y, colour, name) => {
        const box = { x: x(from), y, width: Math.max(1, x(from + length) - x(from) - 1.5) };
        const rect = svg("rect", { ...box, height: 26, rx: 2, style: `fill: ${colour}` }, space);
        svg("title", {}, rect, name);
      };
      const dots = (ms, count, y) => {
        const whole = Math.floor(count + 1e-9);
        for (let i = 0; i < Math.ceil(count - 1e-9); i++) {
          const opacity = i < whole ? 1 : count - whole;
          const at = { cx: x(ms) - 5, cy: y + 7 * (i % 3), r: 3, opacity };
          at.cx -= 7 * Math.floor(i / 3);
          svg("circle", { ...at, style: "fill: var(--r)" }, space);
        }
      };
      const text = (at, y, words, anchor = "start") =>
        svg("text", { x: at, y, "text-anchor": anchor }, space, words);
      text(left, 14, "plain: one target pass a token");
      for (let i = 0; (i + 1) * target <= end; i++) {
        bar(i * target, target, 20, "var(--p)", `target pass, ${target.toFixed(2)} ms`);
        dots((i + 1) * target, 1, 54);
      }
      text(left, 84, "speculative: drafts, then one verify");
      for (let k = 0; (k + 1) * step <= end; k++) {
        for (let i = 0; i < kappa; i++) {
          const from = k * step + i * c * target;
          if (c > 0) bar(from, c * target, 90, "var(--q)", `draft, ${(c * target).toFixed(2)} ms`);
        }
        const from = k * step + kappa * c * target;
        bar(from, target, 90, "var(--p)", `verify, ${target.toFixed(2)} ms`);
        dots((k + 1) * step, tokens, 124);
        text(x((k + 1) * step) - 26 - 7 * (Math.ceil(tokens / 3) - 1), 134, `+${tokens.toFixed(2)}`, "end");
      }
      const [bottom, unit] = [156, axisStep(end)];
      svg("path", { d: `M${left},${bottom}H${width - left}`, stroke: "currentColor" }, space);
      for (let ms = 0; ms <= end; ms += unit) {
        svg("path", { d: `M${x(ms)},${bottom}v5`, stroke: "currentColor" }, space);
        const anchor = ms === 0 ? "start" : "middle";
        if (x(ms) < width - 24) text(x(ms), bottom + 18, `${Number(ms.toPrecision(3))}`, anchor);
      }
      text(width - left, bottom + 18, "ms", "end");
    }

    function tell({ kappa }, { step, tokens, plain, speculative, speedup }) {
      read.replaceChildren();
      const verdict = speedup >= 1 ? "sf-good" : "sf-bad";
      tag("strong", { class: verdict }, read, `S = ${speedup.toFixed(2)}.`);
      read.append(
        ` A step takes ${step.toFixed(2)} ms and yields E = ${tokens.toFixed(2)} tokens on average, ` +
          `at most ${kappa + 1}: ${speculative.toFixed(0)} tokens/s against ` +
          `${plain.toFixed(0)} of plain decoding. A pale dot is a part of a token.`,
      );
      el.dataset.step = step;
      el.dataset.tokens = tokens;
      el.dataset.plain = plain;
      el.dataset.speculative = speculative;
      el.dataset.speedup = speedup;
    }
  },
};
