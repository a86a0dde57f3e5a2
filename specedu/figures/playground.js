// Break it: one fault in the rule, its law against the target's, and the smallest counter-example.

const NAMES = ["p", "q", "kappa", "fault", "turning", "onehot"];

// The state as the part of an address behind '#', and back.
export function toAddress(model) {
  const flags = ["turning", "onehot"].filter((name) => model.get(name)).map((name) => `&${name}`);
  const laws = ["p", "q"].map((name) => `${name}=${model.get(name).join(".")}`).join("&");
  return `#break-it?${laws}&kappa=${model.get("kappa")}&fault=${model.get("fault")}${flags.join("")}`;
}

export function fromAddress(address) {
  if (!address.startsWith("#break-it?")) return null;
  const words = new URLSearchParams(address.slice("#break-it?".length));
  const state = { turning: words.has("turning"), onehot: words.has("onehot") };
  for (const name of ["p", "q"]) {
    const law = (words.get(name) ?? "").split(".").map(Number);
    const legal = law.every((entry) => Number.isInteger(entry) && entry >= 0);
    if (legal && law.length === 3 && law.reduce((a, b) => a + b, 0) === 16) state[name] = law;
  }
  if (["1", "2"].includes(words.get("kappa"))) state.kappa = Number(words.get("kappa"));
  if (Object.hasOwn(FAULTS, words.get("fault"))) state.fault = words.get("fault");
  return state;
}

const words = (law) => `(${law.map(show).join(" ")})`;

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const onPage = el.closest(".afm") !== null; // in a notebook the address is not ours
    const read = (address) => {
      const state = fromAddress(address);
      for (const [name, value] of Object.entries(state ?? {})) model.set(name, value);
      if (state) model.save_changes();
    };
    if (onPage) {
      read(location.hash);
      addEventListener("hashchange", () => read(location.hash));
    }

    const laws = tag("div", { class: "sf-panels" }, el);
    lawBars(tag("div", {}, laws), model, "p", { name: "p, the target", colour: "var(--p)" });
    lawBars(tag("div", {}, laws), model, "q", { name: "q, the draft", colour: "var(--q)" });
    const row = controls(el);
    const options = Object.entries(FAULTS).map(([name, { title }]) => [name, title]);
    choice(row, model, "fault", "Fault:", options);
    slider(row, model, "kappa", "drafts κ", { min: 1, max: 2 });
    checkbox(row, model, "turning", "laws turn with the text");
    checkbox(row, model, "onehot", "drafts are told to be deterministic");
    const status = readout(el);
    const space = drawing(
      tag("div", { class: "sf-scroll" }, el),
      560,
      200,
      "each text: what the target gives it (line) and what the rule gives it (bar)",
    );
    const example = tag("div", { class: "sf-example", "aria-live": "polite" }, el);
    if (onPage) {
      const link = tag("p", {}, el);
      const copy = button(link, "Copy the address of this puzzle", async () => {
        await navigator.clipboard.writeText(location.href);
        copy.textContent = "Copied";
        setTimeout(() => (copy.textContent = "Copy the address of this puzzle"), 1500);
      });
    }

    return watch(model, NAMES, () => {
      const state = Object.fromEntries(NAMES.map((name) => [name, model.get(name)]));
      const setting = makeSetting(state);
      const fault = FAULTS[state.fault];
      const law = jointLaw(setting, fault);
      drawLaw(law);
      const found = state.fault === "none" ? null : counterExample(setting, fault);
      tell(law, found, state.fault);
      el.dataset.variation = show(law.variation);
      el.dataset.deviation = show(law.deviation);
      el.dataset.emitted = show(law.emitted);
      el.dataset.example = found ? found.emitted.join() + "|" + found.right.join() : "";
      if (onPage && location.hash !== toAddress(model)) {
        history.replaceState(null, "", toAddress(model));
      }
    });

    function drawLaw({ rows }) {
      space.replaceChildren();
      const [bottom, tall, step] = [158, 140, 552 / rows.length];
      const top = Math.max(...rows.map(({ law, target }) => Math.max(number(law), number(target))));
      const unit = tall / top;
      svg("path", { d: `M0,${bottom + 0.5}H560`, stroke: "currentColor" }, space);
      rows.forEach(({ text, law, target }, i) => {
        const x = 4 + i * step;
        const wide = step - Math.min(8, step / 4);
        const [height, line] = [number(law) * unit, bottom - number(target) * unit];
        const colour = same(law, target) ? "var(--r)" : "var(--no)";
        const bar = svg(
          "rect",
          { x, y: bottom - height, width: wide, height, style: `fill: ${colour}` },
          space,
        );
        svg("title", {}, bar, `${text.join(" ")}: ${show(law)}, target ${show(target)}`);
        const line_ = { d: `M${x - 1},${line}h${wide + 2}`, "stroke-width": 2.5 };
        svg("path", { ...line_, stroke: "currentColor", fill: "none" }, space);
        const middle = x + wide / 2;
        text.forEach((token, place) => {
          const at = { x: middle, y: bottom + 13 + 11 * place, "text-anchor": "middle" };
          svg("text", { ...at, "font-size": 11 }, space, `${token}`);
        });
      });
    }

    function tell({ variation, deviation, emitted, rows }, found, name) {
      status.replaceChildren();
      const exact = deviation.n === 0n;
      const verdict = exact ? "The law is the target's." : "The law is NOT the target's.";
      tag("strong", { class: exact ? "sf-good" : "sf-bad" }, status, verdict);
      const off = exact ? "" : `, the largest difference ${show(deviation)}`;
      status.append(
        ` Total variation ${show(variation)}${off}, over ${rows.length} texts. ` +
          `Tokens a step: E = ${show(emitted)} = ${number(emitted).toFixed(3)}.`,
      );
      example.replaceChildren();
      if (name === "none") return;
      if (!found) {
        tag("p", {}, example, "Nothing differs here, at no coin: this fault hides from these laws.");
        return;
      }
      const { path, coins, emitted: run, right, edge } = found;
      const head = edge
        ? "Only at single coins, which have no volume, so that no law sees it:"
        : "The smallest counter-example:";
      tag("p", { style: "margin-bottom: 0" }, example, head);
      const scroll = tag("div", { class: "sf-scroll" }, example);
      const table = tag("table", {}, scroll);
      const line = (...entries) => {
        const tr = tag("tr", {}, table);
        entries.forEach((entry) => tag("td", {}, tr, entry));
      };
      path.drafts.forEach((x, i) => {
        const [p, q] = [words(path.ps[i]), words(path.qs[i])];
        line(`row ${i}`, `p = ${p}`, `q = ${q}`, `draft ${x}`, `u = ${show(coins[i])}`);
      });
      line(`row ${path.drafts.length}`, `p = ${words(path.ps.at(-1))}`, "bonus", "", "");
      line("final", `w = ${show(coins.at(-1))}`, "", "", "");
      const verdict2 = tag("p", {}, example, "It emits ");
      tag("strong", { class: "sf-bad" }, verdict2, `[${run.join(", ")}]`);
      verdict2.append(`, and the rule emits [${right.join(", ")}].`);
    }
  },
};
