// min(p, q) + residual = p: the accepted mass of each id, and what a refusal puts on top of it.

export const parts = (p, q) => ({
  accepted: p.map((entry, id) => Math.min(entry, q[id])),
  residual: p.map((entry, id) => Math.max(0, entry - q[id])),
});

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const laws = tag("div", { class: "sf-panels" }, el);
    lawBars(tag("div", {}, laws), model, "p", { name: "p, the target", colour: "var(--p)" });
    lawBars(tag("div", {}, laws), model, "q", { name: "q, the draft", colour: "var(--q)" });
    const width = 520;
    const bottom = 150;
    const tall = 120;
    const label = "accepted mass, and the residual on top of it, against p";
    const space = drawing(el, width, 176, label);
    const read = readout(el);
    return watch(model, ["p", "q"], () => {
      const p = model.get("p");
      const q = model.get("q");
      const total = p.reduce((sum, entry) => sum + entry, 0);
      const { accepted, residual } = parts(p, q);
      const step = width / p.length;
      const unit = tall / Math.max(...p, ...q);
      space.replaceChildren();
      p.forEach((entry, id) => {
        const x = id * step + 22;
        const wide = step - 44;
        const low = accepted[id] * unit;
        const high = residual[id] * unit;
        const box = { x, width: wide };
        const y = bottom - low;
        svg("rect", { ...box, y, height: low, style: "fill: var(--p)" }, space);
        svg("rect", { ...box, y: y - high, height: high, style: "fill: var(--r)" }, space);
        const line = bottom - entry * unit;
        const outline = { fill: "none", stroke: "currentColor", "stroke-width": 2 };
        svg("path", { d: `M${x - 8},${line}H${x + wide + 8}`, ...outline }, space);
        const wasted = q[id] * unit;
        const dashes = { ...box, y: bottom - wasted, height: wasted, "stroke-dasharray": "4 3" };
        svg("rect", { ...dashes, fill: "none", style: "stroke: var(--q)" }, space);
        const sum = `id ${id}: ${accepted[id]} + ${residual[id]} = ${entry}`;
        svg("text", { x: x + wide / 2, y: bottom + 18, "text-anchor": "middle" }, space, sum);
      });
      const kept = accepted.reduce((sum, entry) => sum + entry, 0);
      const drawn = residual.reduce((sum, entry) => sum + entry, 0);
      read.textContent =
        `Accepted: Σ min(p, q) = ${kept}/${total}. Refused: ${total - kept}/${total}, ` +
        `and the residual Σ max(0, p − q) = ${drawn}/${total}, the same.`;
      el.dataset.accepted = kept;
      el.dataset.residual = drawn;
    });
  },
};
