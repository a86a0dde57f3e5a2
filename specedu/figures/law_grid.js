// The unit square of chance for one draft: columns are drafts, as wide as q; inside a column x is
// the accept coin and y the final coin. The area of a colour is the probability of its id.

const SIDE = 288;
const COLOURS = ["var(--p)", "var(--q)", "var(--r)", "var(--no)"];

// The square's rectangles; neighbours along the final coin with the same name are one. A name is the
// run, or its first id and whether the draft was accepted.
export function squares(setting, whole) {
  const found = [];
  let start = ZERO;
  for (const path of paths(setting)) {
    for (const { box, run, volume } of cells(path)) {
      const [u, w] = box;
      const accepted = run.length === 2;
      const name = whole ? run.join() : `${run[0]},${accepted}`;
      const left = add(start, mul(path.weight, u.low));
      const last = found.at(-1);
      if (last && last.name === name && same(last.left, left) && same(last.w.high, w.low)) {
        last.w = { low: last.w.low, high: w.high };
        last.area = add(last.area, volume);
        continue;
      }
      const right = add(start, mul(path.weight, u.high));
      found.push({ name, run, accepted, draft: path.drafts[0], left, right, u, w, area: volume });
    }
    start = add(start, path.weight);
  }
  return found;
}

// The area of each first id: accepted, refused.
export function areas(setting) {
  const rows = Array.from({ length: setting.vocab }, () => ({ accepted: ZERO, refused: ZERO }));
  for (const { run, accepted, area } of squares(setting, false)) {
    const kind = accepted ? "accepted" : "refused";
    rows[run[0]][kind] = add(rows[run[0]][kind], area);
  }
  return rows;
}

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const laws = tag("div", { class: "sf-panels" }, el);
    lawBars(tag("div", {}, laws), model, "p", { name: "p, the target", colour: "var(--p)" });
    lawBars(tag("div", {}, laws), model, "q", { name: "q, the draft", colour: "var(--q)" });
    checkbox(controls(el), model, "whole", "colour by the whole emitted run");
    const both = tag("div", { class: "sf-panels" }, el);
    const left = tag("div", {}, both);
    const label = "the unit square of chance; use the arrow keys to go from cell to cell";
    const space = drawing(left, SIDE + 24, SIDE + 42, label);
    const side = tag("div", {}, both);
    const read = readout(side);
    const table = tag("table", {}, tag("div", { class: "sf-scroll" }, side));
    const hatch = "hatch" + Math.random().toString(36).slice(2);
    let here = 0;

    return watch(model, ["p", "q", "whole"], () => {
      const whole = model.get("whole");
      const setting = makeSetting({ p: model.get("p"), q: model.get("q"), kappa: 1 });
      const found = squares(setting, whole);
      here = Math.min(here, found.length - 1);
      drawSquare(found, setting, whole);
      const rows = areas(setting);
      const sums = rows.map(({ accepted, refused }) => add(accepted, refused));
      if (whole) tellTexts(setting);
      else tellIds(rows, sums, setting.target([]));
      const exact = sums.every((sum, id) => same(sum, setting.target([])[id]));
      el.dataset.areas = sums.map(show).join();
      el.dataset.exact = String(exact && jointLaw(setting).deviation.n === 0n);
      el.dataset.cells = found.length;
      el.dataset.cell = "";
      read.textContent = whole
        ? "Each cell is labelled with the run that is emitted in it."
        : "Each cell is labelled with the first emitted id; hatched: the draft itself, accepted.";
    });

    function drawSquare(found, setting, whole) {
      space.replaceChildren();
      const pattern = svg("pattern", { id: hatch, width: 7, height: 7,
        patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, space);
      svg("path", { d: "M0,0V7", stroke: "currentColor", "stroke-width": 1.2, opacity: 0.55 }, pattern);
      const groups = found.map((square, i) => {
        const [x, end] = [square.left, square.right].map((edge) => 20 + number(edge) * SIDE);
        const [y, bottom] = [square.w.high, square.w.low].map((w) => 4 + (1 - number(w)) * SIDE);
        const name = tell(square, whole);
        const group = svg("g", { role: "img", tabindex: i === here ? 0 : -1, class: "sf-cell",
          "aria-label": name, "data-name": square.name }, space);
        const box = { x, y, width: end - x, height: bottom - y };
        const shade = whole && square.accepted ? 0.2 + 0.2 * square.run[1] : 0.45;
        const fill = `fill: ${COLOURS[square.run[0] % COLOURS.length]}; fill-opacity: ${shade}`;
        svg("rect", { ...box, style: fill, stroke: "currentColor", "stroke-width": 0.8 }, group);
        if (square.accepted) svg("rect", { ...box, fill: `url(#${hatch})` }, group);
        const words = whole ? square.run.join(" ") : `${square.run[0]}`;
        const fits = box.width > 8 * words.length + 6 && box.height > 16;
        const at = { x: x + box.width / 2, y: y + box.height / 2 + 4, "text-anchor": "middle" };
        if (fits) svg("text", { ...at, "font-weight": 700 }, group, words);
        const enter = () => {
          read.textContent = name;
          el.dataset.cell = square.name;
          outline(box);
        };
        group.addEventListener("pointerenter", enter);
        group.addEventListener("focus", enter);
        group.addEventListener("keydown", (event) => {
          const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
          if (!(event.key in moves)) return;
          event.preventDefault();
          groups[here].setAttribute("tabindex", -1);
          here = (here + moves[event.key] + groups.length) % groups.length;
          groups[here].setAttribute("tabindex", 0);
          groups[here].focus();
        });
        return group;
      });
      const mark = svg("rect", { fill: "none", stroke: "currentColor", "stroke-width": 3,
        "pointer-events": "none" }, space);
      const outline = (box) => {
        for (const [name, value] of Object.entries(box)) mark.setAttribute(name, value);
      };
      let start = 0;
      setting.draft([]).forEach((mass, id) => {
        const wide = number(mass) * SIDE;
        const at = { x: 20 + start + wide / 2, y: SIDE + 20, "text-anchor": "middle" };
        if (wide > 50) svg("text", at, space, `draft ${id}`);
        else if (wide > 8) svg("text", at, space, `${id}`);
        start += wide;
      });
      const under = { x: 20 + SIDE / 2, y: SIDE + 37, "text-anchor": "middle" };
      svg("text", under, space, "columns: the draft; inside a column: u →");
      const turned = { transform: `translate(13 ${4 + SIDE / 2}) rotate(-90)` };
      svg("text", { ...turned, "text-anchor": "middle" }, space, "final coin w →");
    }

    function tell({ draft, accepted, u, w, run, area }, whole) {
      const tokens = whole || !accepted ? `[${run.join(", ")}]` : `${run[0]} and a bonus`;
      const between = ({ low, high }) => `${show(low)} to ${show(high)}`;
      return (
        `Draft ${draft}, u from ${between(u)}, w from ${between(w)}: ` +
        `${accepted ? "accepted" : "refused"}, emits ${tokens}; area ${show(area)}.`
      );
    }

    function line(kind, entries) {
      const row = tag("tr", {}, table);
      entries.forEach((entry) => tag(kind, {}, row, entry));
    }

    function tellIds(rows, sums, p) {
      table.replaceChildren();
      line("th", ["id", "accepted", "refused", "area", "p"]);
      rows.forEach(({ accepted, refused }, id) =>
        line("td", [`${id}`, show(accepted), show(refused), show(sums[id]), show(p[id])]),
      );
    }

    function tellTexts(setting) {
      table.replaceChildren();
      line("th", ["text", "law", "p·p"]);
      for (const { text, law, target } of jointLaw(setting).rows) {
        line("td", [text.join(" "), show(law), show(target)]);
      }
    }
  },
};
