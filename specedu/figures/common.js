// Shared by the figures; put before a figure's own source, which is why nothing here is imported.

const SVG = "http://www.w3.org/2000/svg";

// An SVG element in `parent`, with attributes and maybe a text.
export function svg(tag, attributes, parent, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent?.append(node);
  return node;
}

// An HTML element in `parent`, with attributes and maybe a text.
export function tag(name, attributes, parent, text) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  parent?.append(node);
  return node;
}

// A drawing of that size, which shrinks with its column; `label` tells what it shows.
export function drawing(parent, width, height, label) {
  const attributes = { viewBox: `0 0 ${width} ${height}`, width, height, role: "group" };
  return svg("svg", { ...attributes, "aria-label": label }, parent);
}

// Call `draw` now and whenever one of the traits changes; returns what undoes it.
export function watch(model, traits, draw) {
  const names = traits.map((trait) => "change:" + trait).join(" ");
  model.on(names, draw);
  draw();
  return () => model.off(names, draw);
}

export function set(model, trait, value) {
  model.set(trait, value);
  model.save_changes();
}

export function controls(parent) {
  return tag("div", { class: "sf-controls" }, parent);
}

// A slider bound to a number; `show` turns the value into what stands beside it.
export function slider(parent, model, trait, label, { min, max, step = 1, show = String }) {
  const row = tag("label", {}, parent, label + " ");
  const input = tag("input", { type: "range", min, max, step, "data-trait": trait }, row);
  const output = tag("output", {}, row);
  input.addEventListener("input", () => set(model, trait, Number(input.value)));
  watch(model, [trait], () => {
    input.value = model.get(trait);
    output.textContent = show(model.get(trait));
    input.setAttribute("aria-valuetext", show(model.get(trait)));
  });
  return input;
}

// A slider over a list of values, so that small and large ones are as easy to reach.
export function ladder(parent, model, trait, label, values, show) {
  const row = tag("label", {}, parent, label + " ");
  const range = { type: "range", min: 0, max: values.length - 1, step: 1, "data-trait": trait };
  const input = tag("input", range, row);
  const output = tag("output", {}, row);
  input.addEventListener("input", () => set(model, trait, values[Number(input.value)]));
  watch(model, [trait], () => {
    const value = model.get(trait);
    const far = values.map((entry) => Math.abs(entry - value));
    input.value = far.indexOf(Math.min(...far));
    output.textContent = show(value);
    input.setAttribute("aria-valuetext", show(value));
  });
}

// A list of [value, text] bound to a trait.
export function choice(parent, model, trait, label, options) {
  const row = tag("label", {}, parent, label + " ");
  const select = tag("select", { "data-trait": trait }, row);
  for (const [value, text] of options) tag("option", { value }, select, text);
  select.addEventListener("change", () => set(model, trait, select.value));
  watch(model, [trait], () => (select.value = model.get(trait)));
  return select;
}

export function checkbox(parent, model, trait, label) {
  const row = tag("label", {}, parent);
  const input = tag("input", { type: "checkbox", "data-trait": trait }, row);
  row.append(" " + label);
  input.addEventListener("change", () => set(model, trait, input.checked));
  watch(model, [trait], () => (input.checked = model.get(trait)));
  return input;
}

export function button(parent, label, act) {
  const node = tag("button", { type: "button" }, parent, label);
  node.addEventListener("click", act);
  return node;
}

// Calls `drag` with each event of a pointer that goes down on `target`, until it goes up; `focused`
// gets the keyboard.
export function draggable(target, focused, drag) {
  target.addEventListener("pointerdown", (event) => {
    target.setPointerCapture(event.pointerId);
    focused.focus();
    drag(event);
  });
  target.addEventListener("pointermove", (event) => {
    if (target.hasPointerCapture(event.pointerId)) drag(event);
  });
}

// A place that is read out when it changes.
export function readout(parent) {
  return tag("p", { class: "sf-read", "aria-live": "polite" }, parent);
}

// Tokens of a step on average: the sum of P(the first i drafts are accepted), i = 0 to kappa.
export function expectedTokens(alpha, kappa) {
  let [sum, power] = [0, 1];
  for (let i = 0; i <= kappa; i++) {
    sum += power;
    power *= alpha;
  }
  return sum;
}

// Set one entry of a law of whole numbers and take the difference from the others, each according to
// its size, so that the sum stays. Entries never fall below 0.
export function withEntry(law, id, value) {
  const total = law.reduce((sum, entry) => sum + entry, 0);
  const wanted = Math.max(0, Math.min(total, Math.round(value)));
  const rest = law.reduce((sum, entry, i) => (i === id ? sum : sum + entry), 0);
  const left = total - wanted;
  const shares = law.map((entry, i) => {
    if (i === id) return 0;
    return rest > 0 ? (entry * left) / rest : left / (law.length - 1);
  });
  const result = shares.map(Math.floor);
  const missing = left - result.reduce((sum, entry) => sum + entry, 0);
  const order = shares
    .map((share, i) => [share - Math.floor(share), i])
    .filter(([, i]) => i !== id)
    .sort((a, b) => b[0] - a[0] || a[1] - b[1]);
  for (let k = 0; k < missing; k++) result[order[k % order.length][1]] += 1;
  result[id] = wanted;
  return result;
}

// Bars of one law of whole numbers. Each bar is a slider: drag it, or move it with the arrow keys.
export function lawBars(parent, model, trait, { name, colour, width = 250, height = 130 }) {
  const bottom = height - 22;
  const top = 26;
  const space = drawing(parent, width, height, `${name}: drag a bar, or use the arrow keys`);
  space.dataset.law = trait;
  svg("text", { x: 4, y: 14, "font-weight": 600, style: `fill: ${colour}` }, space, name);
  const bars = model.get(trait).map((_, id) => makeBar(id));
  svg("path", { d: `M0,${bottom + 0.5}H${width}`, stroke: "currentColor" }, space);

  function makeBar(id) {
    const step = width / model.get(trait).length;
    const x = id * step + 8;
    const group = svg(
      "g",
      { class: "sf-bar", role: "slider", tabindex: 0, "data-id": id, "aria-orientation": "vertical" },
      space,
    );
    svg("rect", { x, y: top, width: step - 16, height: bottom - top, fill: "transparent" }, group);
    const bar = svg("rect", { x, width: step - 16, style: `fill: ${colour}` }, group);
    const text = svg("text", { x: x + step / 2 - 8, "text-anchor": "middle" }, group);
    svg("text", { x: x + step / 2 - 8, y: height - 6, "text-anchor": "middle" }, space, `id ${id}`);
    const put = (value) => set(model, trait, withEntry(model.get(trait), id, value));
    const keys = { ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1, PageUp: 4, PageDown: -4 };
    group.addEventListener("keydown", (event) => {
      const total = model.get(trait).reduce((sum, entry) => sum + entry, 0);
      if (event.key in keys) put(model.get(trait)[id] + keys[event.key]);
      else if (event.key === "Home") put(0);
      else if (event.key === "End") put(total);
      else return;
      event.preventDefault();
    });
    const drag = (event) => {
      const box = space.getBoundingClientRect();
      const y = ((event.clientY - box.top) / box.height) * height;
      const total = model.get(trait).reduce((sum, entry) => sum + entry, 0);
      put(((bottom - y) / (bottom - top)) * total);
    };
    draggable(group, group, drag);
    return { group, bar, text };
  }

  return watch(model, [trait], () => {
    const law = model.get(trait);
    const total = law.reduce((sum, entry) => sum + entry, 0);
    bars.forEach(({ group, bar, text }, id) => {
      const tall = (law[id] / total) * (bottom - top);
      bar.setAttribute("y", bottom - tall);
      bar.setAttribute("height", tall);
      text.setAttribute("y", bottom - tall - 4);
      text.textContent = `${law[id]}/${total}`;
      group.setAttribute("aria-label", `${name} of id ${id}`);
      group.setAttribute("aria-valuenow", law[id]);
      group.setAttribute("aria-valuemin", 0);
      group.setAttribute("aria-valuemax", total);
      group.setAttribute("aria-valuetext", `${law[id]} of ${total}`);
    });
  });
}
