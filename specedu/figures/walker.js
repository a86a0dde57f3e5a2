// One draft walked through the rule: draft, test, the weights of the final draw, the draw.

const STEPS = 64;
const STAGES = ["draft", "test", "weights", "final"];

// All that the walk shows, as fractions. The bonus row is p again.
export function walk({ p, q, draft, u, w }) {
  const [target, proposal] = [p, q].map((law) => conditional(law, false)([]));
  const coins = { u: frac(u, STEPS), w: frac(w, STEPS) };
  const path = { ps: [target, target], qs: [proposal], drafts: [draft] };
  const run = emit(path, [coins.u], coins.w);
  const accepted = run.length === 2;
  const never = proposal[draft].n === 0n;
  const above = never || less(proposal[draft], target[draft]);
  const border = above ? ONE : div(target[draft], proposal[draft]);
  const weights = accepted ? target : residual(target, proposal);
  const total = weights.reduce(add, ZERO);
  let running = ZERO;
  const sums = weights.map((weight) => div((running = add(running, weight)), total));
  return { target, proposal, ...coins, never, border, accepted, weights, total, sums, run };
}

const WIDE = 300;
const percent = (value) => number(value) * (WIDE - 20);

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const laws = tag("div", { class: "sf-panels" }, el);
    lawBars(tag("div", {}, laws), model, "p", { name: "p, the target", colour: "var(--p)" });
    lawBars(tag("div", {}, laws), model, "q", { name: "q, the draft", colour: "var(--q)" });
    const settings = controls(el);
    const row = tag("label", {}, settings, "drafted id ");
    const select = tag("select", { "data-trait": "draft" }, row);
    model.get("p").forEach((_, id) => tag("option", { value: id }, select, String(id)));
    select.addEventListener("change", () => set(model, "draft", Number(select.value)));
    const coin = { min: 0, max: STEPS - 1, show: (k) => show(frac(k, STEPS)) };
    slider(settings, model, "u", "accept coin u", coin);
    slider(settings, model, "w", "final coin w", coin);
    const buttons = controls(el);
    const step = button(buttons, "Step", () => set(model, "stage", model.get("stage") + 1));
    const reset = button(buttons, "Reset", () => {
      set(model, "stage", 0);
      step.focus();
    });
    const read = readout(el);
    const panels = tag("div", { class: "sf-panels" }, el);
    const place = (height, label) => drawing(tag("div", {}, panels), WIDE, height, label);
    const testing = place(104, "the accept coin against the ratio");
    const weighing = place(150, "the weights of the final draw");
    const drawn = place(104, "the final coin on the running sums of the weights");

    return watch(model, ["p", "q", "draft", "u", "w", "stage"], () => {
      const state = Object.fromEntries(
        ["p", "q", "draft", "u", "w"].map((name) => [name, model.get(name)]),
      );
      const seen = walk(state);
      const stage = seen.never ? 0 : model.get("stage");
      select.value = state.draft;
      step.disabled = seen.never || stage >= STAGES.length - 1;
      reset.disabled = stage === 0;
      for (const space of [testing, weighing, drawn]) space.replaceChildren();
      title(testing, "Test", stage >= 1);
      title(weighing, seen.accepted && stage >= 1 ? "Bonus row" : "Residual", stage >= 2);
      title(drawn, "Final draw", stage >= 3);
      if (stage >= 1) drawTest(seen);
      if (stage >= 2) drawWeights(seen);
      if (stage >= 3) drawFinal(seen);
      read.textContent = words(seen, state.draft, stage);
      el.dataset.stage = STAGES[stage];
      el.dataset.accepted = stage >= 1 ? String(seen.accepted) : "";
      el.dataset.emitted = stage >= 3 ? seen.run.join() : "";
    });

    function title(space, text, reached) {
      svg("text", { x: 10, y: 16, "font-weight": 600 }, space, text);
      if (!reached) svg("text", { x: 10, y: 40, opacity: 0.75 }, space, "not reached yet");
    }

    // The line from 0 to 1, and a mark with a text at a value of it.
    function line(space, y, mark, text) {
      svg("path", { d: `M10,${y}H${WIDE - 10}`, stroke: "currentColor" }, space);
      svg("text", { x: 10, y: y + 16, "text-anchor": "middle" }, space, "0");
      svg("text", { x: WIDE - 10, y: y + 16, "text-anchor": "middle" }, space, "1");
      const x = 10 + percent(mark);
      const path = { d: `M${x},${y - 46}V${y + 5}`, stroke: "currentColor", "stroke-width": 3 };
      svg("path", path, space);
      const end = Math.min(WIDE - 62, Math.max(62, x));
      svg("text", { x: end, y: y + 18, "text-anchor": "middle", "font-weight": 600 }, space, text);
    }

    function drawTest({ border, u }) {
      const width = percent(border);
      const box = { y: 30, height: 34 };
      svg("rect", { x: 10, width, ...box, style: "fill: var(--r)", opacity: 0.4 }, testing);
      const rest = { x: 10 + width, width: WIDE - 20 - width, ...box, opacity: 0.35 };
      svg("rect", { ...rest, style: "fill: var(--no)" }, testing);
      const inside = { y: 52, "text-anchor": "middle" };
      if (width > 66) svg("text", { x: 10 + width / 2, ...inside }, testing, "accept");
      const middle = 10 + width + rest.width / 2;
      if (rest.width > 56) svg("text", { x: middle, ...inside }, testing, "refuse");
      line(testing, 72, u, `u = ${show(u)}`);
      const ratio = `border: min(1, p/q) = ${show(border)}`;
      svg("text", { x: WIDE - 10, y: 16, "text-anchor": "end" }, testing, ratio);
    }

    function drawWeights({ target, proposal, weights, total, accepted }) {
      const [bottom, tall] = [124, 84];
      const unit = tall / Math.max(...[...target, ...proposal].map(number));
      const stride = (WIDE - 20) / weights.length;
      weights.forEach((weight, id) => {
        const [x, width] = [10 + id * stride + 18, stride - 36];
        const bar = (value, look) => {
          const height = number(value) * unit;
          svg("rect", { x, y: bottom - height, width, height, ...look }, weighing);
        };
        bar(weight, { style: "fill: var(--r)" });
        const outline = { fill: "none", "stroke-width": 1.5 };
        bar(target[id], { ...outline, style: "stroke: var(--p)" });
        if (!accepted) bar(proposal[id], { ...outline, style: "stroke: var(--q)",
          "stroke-dasharray": "4 3" });
        const under = { x: x + width / 2, y: bottom + 16, "text-anchor": "middle" };
        svg("text", under, weighing, `id ${id}: ${show(weight)}`);
      });
      svg("path", { d: `M10,${bottom + 0.5}H${WIDE - 10}`, stroke: "currentColor" }, weighing);
      const sum = accepted ? "p of the last row" : `max(0, p − q), Z = ${show(total)}`;
      svg("text", { x: WIDE - 10, y: 16, "text-anchor": "end" }, weighing, sum);
    }

    function drawFinal({ sums, w, run }) {
      sums.forEach((high, id) => {
        const low = id ? sums[id - 1] : ZERO;
        if (!less(low, high)) return;
        const [x, width] = [10 + percent(low), percent(sub(high, low))];
        const here = run.at(-1) === id;
        const look = { opacity: here ? 0.75 : 0.25, style: "fill: var(--r); stroke: currentColor" };
        svg("rect", { x, width, y: 30, height: 34, ...look }, drawn);
        const text = { x: x + width / 2, y: 52, "text-anchor": "middle" };
        if (width > 14) svg("text", text, drawn, `${id}`);
      });
      line(drawn, 72, w, `w = ${show(w)}`);
      svg("text", { x: WIDE - 10, y: 16, "text-anchor": "end" }, drawn, `draws id ${run.at(-1)}`);
    }

    function words({ target, proposal, u, w, never, border, accepted, sums, run }, x, stage) {
      const [p, q] = [target[x], proposal[x]];
      if (never) return `q gives id ${x} nothing: it is never drafted. Choose another id.`;
      const end = ["Step to test it.", "", "", ""][stage];
      if (stage === 0) return `Draft: id ${x}, drawn with probability q = ${show(q)}. ${end}`;
      const sides = `u·q = ${show(mul(u, q))}`;
      if (stage === 1) {
        return accepted
          ? `Test: ${sides} is below p = ${show(p)}: accepted, as for every u below ${show(border)}.`
          : `Test: ${sides} is not below p = ${show(p)}: refused. What q gave too much is gone.`;
      }
      if (stage === 2) {
        return accepted
          ? "No draft was refused: the final token comes from the bonus row, which is p again here."
          : "The replacement comes from what p has above q. Ids that q overrates weigh nothing.";
      }
      const token = run.at(-1);
      return (
        `Final draw: ${show(sums[token])} is the first running sum above w = ${show(w)}, ` +
        `so id ${token}. The step emits [${run.join(", ")}].`
      );
    }
  },
};
