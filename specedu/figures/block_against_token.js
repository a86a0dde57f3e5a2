// Two drafts, two coins: the square of the coins, coloured by how many drafts are accepted, under the
// token rule and under block verification.

const COINS = 40; // steps of a coin
const LENGTHS = ["var(--no)", "var(--p)", "var(--r)"];
const DRAFTS = ["00", "01", "10", "11"];

const total = (list) => list.reduce(add, ZERO);
const twelfths = (n) => [frac(n, 12), frac(12 - n, 12)];

// r_0..r_n and h_1..h_n of a run of drafts under laws that are the same behind every text.
export function blockWeights(p, q, drafts) {
  const rs = [ONE];
  for (const x of drafts) {
    const weighed = mul(rs.at(-1), p[x]);
    if (weighed.n === 0n) rs.push(ZERO);
    else rs.push(less(weighed, q[x]) ? div(weighed, q[x]) : ONE);
  }
  const hs = rs.slice(1).map((r, i) => {
    if (i === drafts.length - 1) return r;
    const over = p.map((entry, id) => sub(mul(r, entry), q[id]));
    const left = total(over.filter((entry) => entry.n > 0n));
    return left.n === 0n ? ZERO : div(left, sub(add(left, ONE), r));
  });
  return { rs, hs };
}

// How many drafts the token rule accepts at coins `us`.
export function tokenLength(p, q, drafts, us) {
  const refused = drafts.findIndex((x, i) => !less(mul(us[i], q[x]), p[x]));
  return refused < 0 ? drafts.length : refused;
}

// How many drafts block verification accepts: the largest i whose coin lies below h_i.
export function blockLength(p, q, drafts, us) {
  const { hs } = blockWeights(p, q, drafts);
  return hs.reduce((taken, h, i) => (less(us[i], h) ? i + 1 : taken), 0);
}

// The rectangles of the square in which both rules are constant, column by column.
export function patches(p, q, drafts) {
  const { hs } = blockWeights(p, q, drafts);
  const sides = drafts.map((x, i) => {
    const cuts = [hs[i], ...(q[x].n > 0n ? [div(p[x], q[x])] : [])];
    const inside = cuts.filter((cut) => less(ZERO, cut) && less(cut, ONE));
    const unique = new Map([ZERO, ...inside, ONE].map((cut) => [show(cut), cut]));
    const edges = [...unique.values()].sort((a, b) => (less(a, b) ? -1 : 1));
    return edges.slice(1).map((high, k) => ({ low: edges[k], high }));
  });
  const middle = ({ low, high }) => mul(add(low, high), frac(1, 2));
  return sides[0].flatMap((u1) =>
    sides[1].map((u2) => {
      const us = [middle(u1), middle(u2)];
      const area = mul(sub(u1.high, u1.low), sub(u2.high, u2.low));
      const token = tokenLength(p, q, drafts, us);
      return { u1, u2, area, token, block: blockLength(p, q, drafts, us) };
    }),
  );
}

// Expected accepted drafts over the coins, for given drafts.
export function expectedOf(p, q, drafts) {
  const mean = (rule) =>
    total(patches(p, q, drafts).map((patch) => mul(patch.area, frac(patch[rule]))));
  return { token: mean("token"), block: mean("block") };
}

// Expected accepted drafts of a step, the drafts drawn from q.
export function expected(p, q) {
  let [token, block] = [ZERO, ZERO];
  for (const word of DRAFTS) {
    const drafts = [...word].map(Number);
    const weight = mul(q[drafts[0]], q[drafts[1]]);
    const mean = expectedOf(p, q, drafts);
    token = add(token, mul(weight, mean.token));
    block = add(block, mul(weight, mean.block));
  }
  return { token, block };
}

// The next place on the grid of coins, behind (word, u1, u2), where block verification accepts less
// than the token rule; null where there is none. Of each rectangle the place nearest its middle.
export function nextLess(p, q, { drafts: word, u1, u2 }) {
  const found = DRAFTS.flatMap((name) => {
    const drafts = [...name].map(Number);
    return patches(p, q, drafts)
      .filter((patch) => patch.block < patch.token)
      .map((patch) => {
        const at = ({ low, high }) => Math.min(COINS - 1, Math.round(((number(low) + number(high)) / 2) * COINS));
        return { drafts: name, u1: at(patch.u1), u2: at(patch.u2) };
      })
      .filter((place) => {
        const us = [frac(place.u1, COINS), frac(place.u2, COINS)];
        return blockLength(p, q, drafts, us) < tokenLength(p, q, drafts, us);
      });
  });
  const here = found.findIndex((o) => o.drafts === word && o.u1 === u1 && o.u2 === u2);
  const behind = found.findIndex((o) => o.drafts >= word);
  if (!found.length) return null;
  return here >= 0 ? found[(here + 1) % found.length] : found[Math.max(0, behind)];
}

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const SIDE = 240;
    const row = controls(el);
    const twelfth = (n) => show(frac(n, 12));
    slider(row, model, "p", "p(0)", { min: 0, max: 12, show: twelfth });
    slider(row, model, "q", "q(0)", { min: 1, max: 11, show: twelfth });
    choice(row, model, "drafts", "drafts", DRAFTS.map((word) => [word, `[${[...word].join(", ")}]`]));
    const coin = (n) => show(frac(n, COINS));
    const coins = controls(el);
    slider(coins, model, "u1", "coin u₁", { min: 0, max: COINS - 1, show: coin });
    slider(coins, model, "u2", "coin u₂", { min: 0, max: COINS - 1, show: coin });
    const find = button(coins, "Find a coin where block accepts less", () => {
      const place = nextLess(...laws(), current());
      if (!place) return (read.textContent = "There is none for these laws.");
      for (const [name, value] of Object.entries(place)) model.set(name, value);
      model.save_changes();
    });
    find.dataset.action = "find";
    const both = tag("div", { class: "sf-panels" }, el);
    const squares = [
      ["token", "Token rule"],
      ["block", "Block verification"],
    ].map(([rule, name]) => {
      const label = `${name}: accepted drafts over the square of coins; move the marker with the arrow keys`;
      const space = drawing(tag("div", {}, both), SIDE + 30, SIDE + 52, label);
      space.dataset.rule = rule;
      return { rule, name, space, marker: makeMarker(space, name) };
    });
    const read = readout(el);
    const table = tag("table", {}, tag("div", { class: "sf-scroll" }, el));

    const current = () =>
      Object.fromEntries(["drafts", "u1", "u2"].map((name) => [name, model.get(name)]));
    const laws = () => [twelfths(model.get("p")), twelfths(model.get("q"))];

    function makeMarker(space, name) {
      const back = svg("g", {}, space);
      const dot = svg("g", { role: "slider", tabindex: 0, "aria-valuemin": 0, "aria-valuemax": COINS - 1,
        "aria-label": `${name}: coins; left and right move the first, up and down the second`,
        style: "cursor: move; touch-action: none" }, space);
      svg("circle", { r: 14, fill: "transparent" }, dot);
      svg("circle", { r: 6, fill: "Canvas", stroke: "currentColor", "stroke-width": 2.5 }, dot);
      const put = (u1, u2) => {
        const within = (n) => Math.max(0, Math.min(COINS - 1, n));
        model.set("u1", within(u1));
        model.set("u2", within(u2));
        model.save_changes();
      };
      const moves = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
      dot.addEventListener("keydown", (event) => {
        if (!(event.key in moves)) return;
        event.preventDefault();
        const [du1, du2] = moves[event.key];
        put(model.get("u1") + du1, model.get("u2") + du2);
      });
      const drag = (event) => {
        const box = space.getBoundingClientRect();
        const scale = (SIDE + 30) / box.width;
        const x = (event.clientX - box.left) * scale - 24;
        const y = (event.clientY - box.top) * scale - 20;
        put(Math.round((x / SIDE) * COINS), Math.round((1 - y / SIDE) * COINS));
      };
      draggable(space, dot, drag);
      return { back, dot };
    }

    const x = (u) => 24 + u * SIDE;
    const y = (u) => 20 + (1 - u) * SIDE;

    function drawSquare({ rule, name, marker }, found, at) {
      marker.back.replaceChildren();
      svg("text", { x: 24, y: 13, "font-weight": 600 }, marker.back, name);
      for (const patch of found) {
        const [left, right, low, high] = [patch.u1.low, patch.u1.high, patch.u2.low, patch.u2.high].map(number);
        const box = { x: x(left), y: y(high), width: (right - left) * SIDE, height: (high - low) * SIDE };
        const fill = `fill: ${LENGTHS[patch[rule]]}; fill-opacity: 0.38`;
        svg("rect", { ...box, style: fill, stroke: "currentColor", "stroke-width": 0.7 }, marker.back);
        const sign = patch.block < patch.token ? " −" : patch.block > patch.token ? " +" : "";
        const text = `${patch[rule]}${rule === "block" ? sign : ""}`;
        const middle = { x: box.x + box.width / 2, y: box.y + box.height / 2 + 4, "text-anchor": "middle" };
        if (box.width > 26 && box.height > 15) svg("text", { ...middle, "font-weight": 700 }, marker.back, text);
      }
      svg("text", { x: x(0.5), y: SIDE + 38, "text-anchor": "middle" }, marker.back, "first coin u₁ →");
      const turned = { transform: `translate(15 ${y(0.5)}) rotate(-90)`, "text-anchor": "middle" };
      svg("text", turned, marker.back, "second coin u₂ →");
      marker.dot.setAttribute("transform", `translate(${x(at.u1 / COINS)} ${y(at.u2 / COINS)})`);
      marker.dot.setAttribute("aria-valuenow", at.u1);
      marker.dot.setAttribute("aria-valuetext", `u1 ${coin(at.u1)}, u2 ${coin(at.u2)}`);
    }

    function line(kind, entries) {
      const row = tag("tr", {}, table);
      entries.forEach((entry) => tag(kind, {}, row, entry));
    }

    return watch(model, ["p", "q", "drafts", "u1", "u2"], () => {
      const [p, q] = laws();
      const at = current();
      const drafts = [...at.drafts].map(Number);
      const found = patches(p, q, drafts);
      squares.forEach((square) => drawSquare(square, found, at));
      const us = [frac(at.u1, COINS), frac(at.u2, COINS)];
      const [token, block] = [tokenLength(p, q, drafts, us), blockLength(p, q, drafts, us)];
      const word = block < token ? "fewer" : block > token ? "more" : "as many";
      read.textContent =
        `Drafts [${drafts.join(", ")}], u₁ = ${show(us[0])}, u₂ = ${show(us[1])}: the token rule accepts ` +
        `${token}, block verification ${block}: ${word}.`;
      const { hs } = blockWeights(p, q, drafts);
      const ratios = drafts.map((id) => (less(p[id], q[id]) ? div(p[id], q[id]) : ONE));
      const [mine, all] = [expectedOf(p, q, drafts), expected(p, q)];
      table.replaceChildren();
      line("th", ["", "token rule", "block"]);
      line("td", ["u₁ must be below", show(ratios[0]), show(hs[0])]);
      line("td", ["u₂ must be below", show(ratios[1]), show(hs[1])]);
      line("td", ["accepted of these drafts", show(mine.token), show(mine.block)]);
      line("td", ["accepted of drafts from q", show(all.token), show(all.block)]);
      Object.assign(el.dataset, { token, block, expectedToken: show(all.token), expectedBlock: show(all.block) });
    });
  },
};
