// One position, two shapes of a pass: the argmax of each, the verdict, and what may be compared.

const DIRECTIONS = { against: [0, -1, 1, 0], along: [0, 1, -1, 0], alike: [1, 1, 1, 1] };

// Both rows of logits in steps, what each run emits, and of which kind a difference is.
export function outcome({ gap, change, direction, draft, highest }) {
  const plain = [12, 20, 20 - gap, 9];
  const verify = plain.map((logit, id) => logit + change * DIRECTIONS[direction][id]);
  const top = Math.max(...plain);
  const chosen = highest ? plain.lastIndexOf(top) : plain.indexOf(top);
  const emitted = verify.indexOf(Math.max(...verify)); // the lowest id among equals
  const near = gap < 2 * change; // every direction moves some logit by the whole change
  const kind = chosen === emitted ? "same" : near ? "near-tie" : "tie-break";
  return { plain, verify, chosen, emitted, accepted: Number(draft) === emitted, near, kind };
}

const TRAITS = ["gap", "change", "direction", "draft", "highest"];
const MEANING = {
  same: "Both runs go on with one text, and the next position can be compared.",
  "near-tie":
    "Near-tie: neither text is wrong. All before this position has been compared; behind it the " +
    "texts differ, so that rows answer different questions. Stop here.",
  "tie-break":
    "The rounding does not explain it: an exact tie was broken in two ways. The law allows either " +
    "id; a comparison of texts needs one tie-break.",
};

export default {
  render({ model, el }) {
    el.classList.add("specfig");
    const row = controls(el);
    slider(row, model, "gap", "gap of the two largest", { min: 0, max: 12 });
    slider(row, model, "change", "largest change of a logit", { min: 0, max: 8 });
    const more = controls(el);
    choice(more, model, "direction", "The verify moves them", [
      ["against", "against each other"],
      ["along", "further apart"],
      ["alike", "all alike"],
    ]);
    const ids = ["0", "1", "2", "3"].map((id) => [id, `id ${id}`]);
    choice(more, model, "draft", "Draft", ids);
    checkbox(more, model, "highest", "plain decoding takes the highest id among equals");
    // As wide as its place, so that the text need not shrink on a phone.
    const width = Math.max(280, Math.min(520, (el.clientWidth || 506) - 26));
    const label = "logits of four ids in a pass of one token, and in a verify beside it";
    const space = drawing(el, width, 210, label);
    const read = readout(el);

    return watch(model, TRAITS, () => {
      const state = Object.fromEntries(TRAITS.map((name) => [name, model.get(name)]));
      const found = outcome(state);
      draw(found);
      tell(state, found);
    });

    function draw({ plain, verify, chosen, emitted }) {
      space.replaceChildren();
      const [bottom, tall, step] = [176, 128, width / 4];
      const bar = (id, logit, left, colour, best) => {
        const height = (logit / 28) * tall;
        const box = { x: id * step + left, y: bottom - height, width: step / 3, height };
        svg("rect", { ...box, style: `fill: ${colour}` }, space);
        const at = { x: box.x + box.width / 2, "text-anchor": "middle" };
        svg("text", { ...at, y: box.y - 4, "font-weight": best ? 700 : 400 }, space, `${logit}`);
        if (best) svg("text", { ...at, y: box.y - 17 }, space, "▼");
      };
      plain.forEach((logit, id) => bar(id, logit, step * 0.14, "var(--p)", id === chosen));
      verify.forEach((logit, id) => bar(id, logit, step * 0.52, "var(--r)", id === emitted));
      svg("path", { d: `M0,${bottom + 0.5}H${width}`, stroke: "currentColor" }, space);
      plain.forEach((_, id) => {
        const at = { x: (id + 0.5) * step, y: bottom + 16, "text-anchor": "middle" };
        svg("text", at, space, `id ${id}`);
      });
      const key = (x, colour, words) => {
        svg("rect", { x, y: 198, width: 10, height: 10, style: `fill: ${colour}` }, space);
        svg("text", { x: x + 14, y: 207 }, space, words);
      };
      key(2, "var(--p)", "one token");
      key(width / 2 - 30, "var(--r)", "verify   ▼ its argmax");
    }

    function tell({ gap, change, draft, highest }, { chosen, emitted, accepted, near, kind }) {
      read.replaceChildren();
      const verdict = accepted ? "accepted" : "refused";
      read.append(`Plain decoding takes id ${chosen}. The verify: draft ${draft} `);
      tag("strong", { class: accepted ? "sf-good" : "sf-bad" }, read, verdict);
      read.append(`, emitted id ${emitted}. Gap ${gap} ${near ? "<" : "≥"} 2 × ${change}: `);
      tag("strong", {}, read, near ? "a near-tie. " : "no near-tie. ");
      read.append(MEANING[kind]);
      el.dataset.tiebreak = highest ? "highest" : "lowest"; // shows at a tie alone
      el.dataset.chosen = chosen;
      el.dataset.emitted = emitted;
      el.dataset.accepted = accepted;
      el.dataset.near = near;
      el.dataset.kind = kind;
    }
  },
};
