// Acceptance by place: rates r_i drawn by hand, the conditional rates c_i that follow from them, and
// the single alpha that fits best.

// c_i = r_i / r_{i-1}, and 0 where nothing gets so far.
export function conditionalRates(rates) {
  return rates.map((rate, i) => {
    const before = i === 0 ? 1 : rates[i - 1];
    return before > 0 ? rate / before : 0;
  });
}

// Accepted drafts over tested ones: the likeliest alpha.
export function fittedAlpha(rates) {
  const accepted = rates.reduce((sum, rate) => sum + rate, 0);
  return accepted / (1 + accepted - rates[rates.length - 1]);
}

// E of any rates: one and their sum.
export function tokensOfRates(rates) {
  return rates.reduce((sum, rate) => sum + rate, 1);
}

// r_i of one alpha.
export function powersOf(alpha, kappa) {
  return Array.from({ length: kappa }, (_, i) => alpha ** (i + 1));
}

// Set one rate; those before it rise to it and those behind it fall to it where they must.
export function withRate(rates, place, value) {
  const rate = Math.min(1, Math.max(0, value));
  return rates.map((old, i) =>
    i === place ? rate : i < place ? Math.max(old, rate) : Math.min(old, rate),
  );
}

// All that is shown.
export function resultOf(rates, fitOn) {
  const alpha = fittedAlpha(rates.slice(0, fitOn));
  const powers = powersOf(alpha, rates.length);
  return {
    alpha,
    powers,
    conditional: conditionalRates(rates),
    tokens: rates.map((_, i) => tokensOfRates(rates.slice(0, i + 1))),
    fitted: powers.map((_, i) => tokensOfRates(powers.slice(0, i + 1))),
  };
}

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const names = Object.keys(model.get("presets"));
    const row = controls(el);
    const options = [["", "drawn by hand"], ...names.map((name) => [name, name])];
    choice(row, model, "preset", "Rates", options).addEventListener("change", () => {
      const rates = model.get("presets")[model.get("preset")];
      if (!rates) return;
      set(model, "rates", [...rates]);
      set(model, "fit_on", Math.min(model.get("fit_on"), rates.length));
    });
    const kappa = model.get("rates").length;
    const first = (count) => (count === 1 ? "place 1 alone" : `places 1 to ${count}`);
    slider(row, model, "fit_on", "α fitted on", { min: 1, max: kappa, show: first });

    const panels = tag("div", { class: "sf-panels" }, el);
    const [width, height, left, top, bottom] = [300, 230, 34, 42, 190];
    const spaces = ["unconditional rates: drag a point, or use the arrow keys", "conditional rates"];
    const [main, side] = spaces.map((label) => drawing(tag("div", {}, panels), width, height, label));
    const x = (i) => left + ((i + 0.5) * (width - left - 6)) / kappa;
    const y = (rate) => bottom - rate * (bottom - top);
    frame(main, "rᵢ: the first i are all accepted", "var(--p)");
    frame(side, "cᵢ: accepted, of those that got so far", "var(--r)");
    const dash = { fill: "none", "stroke-width": 2, "stroke-dasharray": "5 4" };
    const orange = "stroke: var(--q)";
    const fit = svg("path", { ...dash, style: orange }, main);
    const line = svg("path", { fill: "none", "stroke-width": 2, style: "stroke: var(--p)" }, main);
    const points = model.get("rates").map((_, place) => makePoint(place));
    const bars = model.get("rates").map((_, i) => {
      const box = { x: x(i) - 11, width: 22, style: "fill: var(--r)" };
      return {
        bar: svg("rect", box, side),
        text: svg("text", { x: x(i), "text-anchor": "middle" }, side),
      };
    });
    const level = svg("path", { ...dash, style: orange }, side);
    const read = readout(el);
    const table = tag("table", {}, tag("div", { class: "sf-scroll", tabindex: 0,
      role: "region", "aria-label": "tokens of a step for every number of drafts" }, el));

    return watch(model, ["rates", "fit_on"], () => {
      const rates = model.get("rates");
      const result = resultOf(rates, model.get("fit_on"));
      draw(rates, result);
      tell(result);
    });

    function frame(space, name, colour) {
      svg("text", { x: 2, y: 14, "font-weight": 600, style: `fill: ${colour}` }, space, name);
      for (const rate of [0, 0.5, 1]) {
        const path = { d: `M${left},${y(rate)}H${width}`, stroke: "var(--soft)", fill: "none" };
        svg("path", path, space);
        svg("text", { x: left - 5, y: y(rate) + 4, "text-anchor": "end" }, space, `${rate}`);
      }
      for (let i = 0; i < kappa; i++) {
        svg("text", { x: x(i), y: bottom + 17, "text-anchor": "middle" }, space, `${i + 1}`);
      }
      svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, space, "place i");
    }

    function makePoint(place) {
      const group = svg("g", { class: "sf-bar", role: "slider", tabindex: 0, "data-place": place,
        "aria-orientation": "vertical", "aria-valuemin": 0, "aria-valuemax": 1 }, main);
      const half = (width - left - 6) / kappa / 2;
      const strip = { x: x(place) - half, y: top - 6, width: 2 * half, height: bottom - top + 12 };
      svg("rect", { ...strip, fill: "transparent" }, group);
      const dot = svg("circle", { cx: x(place), r: 6, style: "fill: var(--p)" }, group);
      const text = svg("text", { x: x(place) + 4, "text-anchor": "middle" }, group);
      const put = (value) => {
        set(model, "preset", "");
        set(model, "rates", withRate(model.get("rates"), place, Math.round(value * 100) / 100));
      };
      const keys = { ArrowUp: 0.01, ArrowRight: 0.01, ArrowDown: -0.01, ArrowLeft: -0.01,
        PageUp: 0.1, PageDown: -0.1 };
      group.addEventListener("keydown", (event) => {
        if (event.key in keys) put(model.get("rates")[place] + keys[event.key]);
        else if (event.key === "Home") put(0);
        else if (event.key === "End") put(1);
        else return;
        event.preventDefault();
      });
      const drag = (event) => {
        const box = main.getBoundingClientRect();
        const at = ((event.clientY - box.top) / box.height) * height;
        put((bottom - at) / (bottom - top));
      };
      draggable(group, group, drag);
      return { group, dot, text };
    }

    function draw(rates, { alpha, powers, conditional }) {
      const from = (values) => "M" + values.map((v, i) => `${x(i)},${y(v)}`).join("L");
      fit.setAttribute("d", from(powers));
      line.setAttribute("d", from(rates));
      points.forEach(({ group, dot, text }, i) => {
        dot.setAttribute("cy", y(rates[i]));
        text.setAttribute("y", y(rates[i]) - 11);
        text.textContent = rates[i].toFixed(2);
        group.setAttribute("aria-label", `rate of place ${i + 1}`);
        group.setAttribute("aria-valuenow", rates[i]);
        group.setAttribute("aria-valuetext", rates[i].toFixed(2));
      });
      bars.forEach(({ bar, text }, i) => {
        bar.setAttribute("y", y(conditional[i]));
        bar.setAttribute("height", bottom - y(conditional[i]));
        text.setAttribute("y", y(conditional[i]) - 5);
        text.textContent = i > 0 && rates[i - 1] === 0 ? "–" : conditional[i].toFixed(2);
      });
      level.setAttribute("d", `M${left},${y(alpha)}H${width}`);
    }

    function tell({ alpha, tokens, fitted, conditional, powers }) {
      const [own, wanted] = [tokens.at(-1), fitted.at(-1)];
      const off = wanted - own;
      read.replaceChildren();
      tag("strong", {}, read, `E = ${own.toFixed(2)}.`);
      const verdict = Math.abs(off) < 0.005 ? "the same" :
        `${Math.abs(off).toFixed(2)} too ${off > 0 ? "many" : "few"}`;
      read.append(
        ` The fit, α = ${alpha.toFixed(3)}, says ${wanted.toFixed(2)} tokens: ${verdict}. ` +
          "The dashed line is the fit.",
      );
      table.replaceChildren();
      const lines = [
        ["th", "drafts κ", tokens.map((_, i) => `${i + 1}`)],
        ["td", "E of the rates", tokens.map((value) => value.toFixed(2))],
        ["td", "E of the fit", fitted.map((value) => value.toFixed(2))],
      ];
      for (const [kind, name, entries] of lines) {
        const line = tag("tr", {}, table);
        tag("th", { scope: "row", style: "white-space: nowrap" }, line, name);
        entries.forEach((entry) => tag(kind, {}, line, entry));
      }
      el.dataset.alpha = alpha;
      el.dataset.tokens = own;
      el.dataset.fitted = wanted;
      el.dataset.conditional = conditional.join();
      el.dataset.powers = powers.join();
      el.dataset.fitOn = model.get("fit_on");
    }
  },
};
