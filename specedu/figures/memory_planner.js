// What of a card's memory goes where, plain and speculating, and how many requests fit.

// Slots that a request holds for one decode step.
export const reservedSlots = (kappa, policy) =>
  ({ plain: 1, window: kappa + 1, lookahead: 2 * kappa + 1, "double buffer": 2 * (kappa + 1) })[
    policy
  ];

const NONE = { weights: 0, kv: 0 };

// Requests that fit and the bytes of each part; `memory` in bytes, `draft` an entry or null.
export function planOf(target, draft, { memory, length, kappa, policy, block }) {
  const other = draft ?? NONE;
  const slots = reservedSlots(kappa, policy);
  const held = Math.ceil((length + slots - 1) / block) * block;
  const token = target.kv + other.kv;
  const left = memory - target.weights - other.weights;
  const each = held * token;
  const requests = left < 0 ? 0 : Math.round((left - (left % each)) / each);
  const parts = {
    weights: target.weights,
    draft_weights: other.weights,
    text: requests * length * target.kv,
    draft_text: requests * length * other.kv,
    reserved: requests * (held - length) * token,
  };
  const used = Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);
  return { requests, slots, held, ...parts, unused: Math.max(0, memory - used), fits: left >= 0 };
}

export const LENGTHS = [
  16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072,
];

const DRAFT = "Llama-3.2-1B";
const TRAITS = ["model", "memory", "length", "kappa", "policy", "block", "draft"];
const PARTS = [
  ["weights", "weights", "var(--p)", 1],
  ["draft_weights", "draft's weights", "var(--q)", 1],
  ["text", "texts", "var(--p)", 0.45],
  ["draft_text", "draft's texts", "var(--q)", 0.45],
  ["reserved", "reserved", "var(--no)", 1],
  ["unused", "unused", "var(--soft)", 1],
];

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    tag("strong", {}, el, "Where the memory goes (derived)");
    const what = controls(el);
    const names = Object.keys(model.get("models")).map((name) => [name, name]);
    choice(what, model, "model", "Target", names);
    choice(what, model, "policy", "Reserved", [
      ["plain", "1 slot: plain"],
      ["window", "κ + 1: the window"],
      ["lookahead", "2κ + 1: window and look-ahead"],
      ["double buffer", "2(κ + 1): double buffer"],
    ]);
    const sizes = ["1", "16", "64", "256"].map((size) => [size, size]);
    choice(what, model, "block", "Slots of a block", sizes);
    checkbox(what, model, "draft", `${DRAFT} as the draft`);
    const row = controls(el);
    slider(row, model, "memory", "memory", { min: 1, max: 256, show: (value) => `${value} GB` });
    const count = (value) => value.toLocaleString("en");
    ladder(row, model, "length", "tokens of a request", LENGTHS, count);
    slider(row, model, "kappa", "drafts κ", { min: 0, max: 16 });
    // As wide as its place, so that the text need not shrink on a phone.
    const width = Math.max(280, Math.min(640, (el.clientWidth || 626) - 26));
    const space = drawing(el, width, 118, "memory of plain decoding and of speculation, in parts");
    const key = tag("div", { class: "sf-controls" }, el);
    for (const [, name, colour, opacity] of PARTS) {
      const entry = tag("span", {}, key);
      const square = drawing(entry, 12, 12, "");
      square.setAttribute("aria-hidden", "true");
      square.style.display = "inline-block";
      svg("rect", { width: 12, height: 12, style: `fill: ${colour}; opacity: ${opacity}` }, square);
      entry.append(" " + name);
    }
    const read = readout(el);

    return watch(model, TRAITS, () => {
      const state = Object.fromEntries(TRAITS.map((name) => [name, model.get(name)]));
      const models = model.get("models");
      const setting = { ...state, memory: state.memory * 1e9, block: Number(state.block) };
      const none = { ...setting, kappa: 0, policy: "plain" };
      const plain = planOf(models[state.model], null, none);
      const other = planOf(models[state.model], state.draft ? models[DRAFT] : null, setting);
      draw(plain, other, setting.memory);
      tell(plain, other, state);
    });

    function draw(plain, other, memory) {
      space.replaceChildren();
      [
        ["plain decoding", plain, 0],
        ["speculating", other, 58],
      ].forEach(([name, plan, y]) => {
        const words = plan.fits ? `${count(plan.requests)} requests` : "the weights do not fit";
        svg("text", { x: 0, y: y + 14 }, space, `${name}: ${words}`);
        let x = 0;
        const over = Math.max(memory, plan.weights + plan.draft_weights);
        for (const [part, label, colour, opacity] of PARTS) {
          const wide = (plan[part] / over) * width;
          const box = { x, y: y + 22, width: wide, height: 26 };
          const rect = svg("rect", { ...box, style: `fill: ${colour}; opacity: ${opacity}` }, space);
          svg("title", {}, rect, `${label}: ${(plan[part] / 1e9).toFixed(2)} GB`);
          x += wide;
        }
      });
    }

    function tell(plain, other, state) {
      const lost = plain.requests ? 100 * (1 - other.requests / plain.requests) : 0;
      const gb = (bytes) => `${(bytes / 1e9).toFixed(2)} GB`;
      const more = other.held - state.length;
      read.replaceChildren();
      tag("strong", {}, read, `${count(other.requests)} requests instead of `);
      tag("strong", {}, read, `${count(plain.requests)}: ${lost.toFixed(1)} % fewer. `);
      read.append(
        `A step reserves ${other.slots} slot${other.slots > 1 ? "s" : ""} a request; behind the ` +
          `text and up to the end of the last block there are ${count(more)}. Weights ` +
          `${gb(other.weights + other.draft_weights)}, texts ${gb(other.text + other.draft_text)}, ` +
          `reserved ${gb(other.reserved)}.`,
      );
      el.dataset.plain = plain.requests;
      el.dataset.requests = other.requests;
      el.dataset.slots = other.slots;
      el.dataset.reserved = other.reserved;
    }
  },
};
