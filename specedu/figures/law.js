// The exact law of the chain rule, right or with one fault in it, as fractions of big integers. A
// test compares every law with specedu.theory.exact, asked on the real source with that fault.

const gcd = (a, b) => (b ? gcd(b, a % b) : a);

// A fraction: numerator and denominator, reduced, the denominator above 0.
export function frac(n, d = 1) {
  n = BigInt(n);
  d = BigInt(d);
  if (d < 0n) [n, d] = [-n, -d];
  const common = gcd(n < 0n ? -n : n, d) || 1n;
  return { n: n / common, d: d / common };
}
export const ZERO = frac(0);
export const ONE = frac(1);
export const add = (a, b) => frac(a.n * b.d + b.n * a.d, a.d * b.d);
export const sub = (a, b) => frac(a.n * b.d - b.n * a.d, a.d * b.d);
export const mul = (a, b) => frac(a.n * b.n, a.d * b.d);
export const div = (a, b) => frac(a.n * b.d, a.d * b.n);
export const less = (a, b) => a.n * b.d < b.n * a.d;
export const same = (a, b) => a.n === b.n && a.d === b.d;
export const number = (a) => Number(a.n) / Number(a.d);
export const show = (a) => (a.d === 1n ? `${a.n}` : `${a.n}/${a.d}`);
const sum = (list) => list.reduce(add, ZERO);
const abs = (a) => (less(a, ZERO) ? sub(ZERO, a) : a);
const positive = (a) => (less(a, ZERO) ? ZERO : a);
const key = (a) => `${a.n}/${a.d}`;

// --- a setting: target and draft laws behind every text -------------------------------------------

// `turning` turns the laws by the length and the ids of the text, so that no row is like the next.
export function conditional(entries, turning) {
  const total = entries.reduce((a, b) => a + b, 0);
  const law = entries.map((entry) => frac(entry, total));
  return (text) => {
    if (!turning) return law;
    const by = (text.length + 2 * text.reduce((a, b) => a + b, 0)) % law.length;
    return [...law.slice(by), ...law.slice(0, by)];
  };
}

export function makeSetting({ p, q, kappa, turning = false, onehot = false }) {
  const vocab = p.length;
  return { vocab, kappa, onehot, target: conditional(p, turning), draft: conditional(q, turning) };
}

// Every tuple of drafts that may be proposed, with its rows and its probability.
export function paths(setting) {
  let grown = [{ drafts: [], qs: [], weight: ONE }];
  for (let i = 0; i < setting.kappa; i++) {
    grown = grown.flatMap(({ drafts, qs, weight }) => {
      const q = setting.draft(drafts);
      return q
        .map((entry, x) => ({ drafts: [...drafts, x], qs: [...qs, q], weight: mul(weight, entry) }))
        .filter((path) => path.weight.n > 0n);
    });
  }
  return grown.map((path) => {
    const ps = Array.from({ length: setting.kappa + 1 }, (_, i) =>
      setting.target(path.drafts.slice(0, i)),
    );
    const onehot = setting.onehot;
    const seen = path.qs.map((q, i) => (onehot ? oneHot(path.drafts[i], setting.vocab) : q));
    return { ...path, ps, qs: seen, onehot };
  });
}

const oneHot = (x, vocab) => Array.from({ length: vocab }, (_, id) => (id === x ? ONE : ZERO));

// --- the rule, with a place for each fault --------------------------------------------------------

// The residual, or p where it has no mass.
export function residual(p, q) {
  const weights = p.map((entry, id) => positive(sub(entry, q[id])));
  return weights.some((entry) => entry.n > 0n) ? weights : p;
}

// The smallest id whose running sum exceeds coin times the sum.
export function sample(weights, coin, over = (running, goal) => less(goal, running)) {
  const goal = mul(coin, sum(weights));
  let running = ZERO;
  let last = 0;
  for (const [id, weight] of weights.entries()) {
    running = add(running, weight);
    if (weight.n > 0n) {
      if (over(running, goal)) return id;
      last = id;
    }
  }
  return last;
}

const RULE = {
  accepts: ({ p, q, x, u }) => less(mul(u, q[x]), p[x]),
  coin: (coins, i) => coins[i], // which coin tests draft i
  count: (flags) => (flags.indexOf(false) < 0 ? flags.length : flags.indexOf(false)),
  row: (count) => count, // whose row the final token comes from
  weights: residual,
  finalCoin: (us, w) => w,
  over: (running, goal) => less(goal, running),
  tail: () => [], // what is kept behind a refusal
};

// The run that a rule emits for a path at coins us and w.
export function emit(path, us, w, fault = {}) {
  const rule = { ...RULE, ...fault };
  const { ps, qs, drafts } = path;
  const flags = drafts.map((x, i) =>
    rule.accepts({ p: ps[i], q: qs[i], x, u: rule.coin(us, i) }),
  );
  const count = rule.count(flags);
  if (count === drafts.length) return [...drafts, sample(ps[count], w, rule.over)];
  const weights = rule.weights(ps[rule.row(count, drafts.length)], qs[count], path.onehot);
  const token = sample(weights, rule.finalCoin(us, w, count), rule.over);
  return [...drafts.slice(0, count), token, ...rule.tail(drafts, flags, count)];
}

// Each fault: what it changes, and where that makes a coin decide differently. `planted` is its name
// in specedu/grade/faults.py.
export const FAULTS = {
  none: { title: "no fault" },
  "threshold-on-p": {
    title: "accept while u < p(x)",
    planted: "threshold-on-p",
    accepts: ({ p, x, u }) => less(u, p[x]),
    acceptCuts: (path, i) => [path.ps[i][path.drafts[i]]],
  },
  "top-k-membership": {
    title: "accept the target's two likeliest ids",
    planted: "top-k-membership",
    accepts: ({ p, x }) => p.filter((entry) => less(p[x], entry)).length < 2,
  },
  "inclusive-test": {
    title: "accept while u·q(x) ≤ p(x)",
    planted: "inclusive-test",
    accepts: ({ p, q, x, u }) => !less(p[x], mul(u, q[x])),
  },
  "one-coin-for-every-test": {
    title: "one coin tests every draft",
    coin: (us) => us[0],
    acceptCuts: (path, i) => (i === 0 ? path.drafts.map((_, j) => ratio(path, j)) : []),
  },
  "p-instead-of-residual": {
    title: "after a refusal draw from p",
    planted: "p-instead-of-residual",
    weights: (p, q, onehot) => (onehot ? residual(p, q) : p), // a one-hot draft is masked out
    finalLaws: (path) => path.ps,
  },
  "residual-by-absolute-value": {
    title: "the residual is |p − q|",
    planted: "residual-by-absolute-value-kernel",
    weights: (p, q, onehot) => {
      // A one-hot draft is masked out, whatever the sign of the rest.
      const weights = onehot
        ? p.map((entry, id) => (q[id].n > 0n ? ZERO : entry))
        : p.map((entry, id) => abs(sub(entry, q[id])));
      return weights.some((entry) => entry.n > 0n) ? weights : p;
    },
    finalLaws: (path) =>
      path.qs.map((q, i) => path.ps[i].map((entry, id) => abs(sub(entry, q[id])))),
  },
  "reused-coin": {
    title: "the refusing coin also draws",
    planted: "reused-coin",
    finalCoin: (us, w, count) => us[count],
    acceptCuts: (path, i) => runningSums(residual(path.ps[i], path.qs[i])),
  },
  "one-hot-draft-not-masked": {
    title: "a refused one-hot draft may be drawn again",
    planted: "one-hot-draft-not-masked",
    weights: (p, q, onehot) => (onehot ? p : residual(p, q)),
    finalLaws: (path) => path.ps,
  },
  "accepts-counted-behind-a-refusal": {
    title: "count every accepted flag",
    planted: "accepts-counted-behind-a-refusal",
    count: (flags) => flags.filter(Boolean).length,
  },
  "tail-kept": {
    title: "keep accepted drafts behind a refusal",
    tail: (drafts, flags, count) => {
      const next = flags.indexOf(false, count + 1);
      return drafts.slice(count + 1, next < 0 ? drafts.length : next);
    },
  },
  "bonus-row-after-a-refusal": {
    title: "after a refusal draw from the last row",
    planted: "bonus-row-after-a-refusal",
    row: (count, drafted) => drafted,
    finalLaws: (path) => path.qs.map((q) => residual(path.ps.at(-1), q)),
  },
  "row-behind-the-refusal": {
    title: "after a refusal draw from the row behind it",
    planted: "row-behind-the-refusal-kernel",
    row: (count) => count + 1,
    finalLaws: (path) => path.qs.map((q, i) => residual(path.ps[i + 1], q)),
  },
  "border-takes-the-id-before": {
    title: "the draw stops at ≥ instead of >",
    planted: "border-takes-the-id-before",
    over: (running, goal) => !less(running, goal),
  },
};

// --- cells of coins, and the law ------------------------------------------------------------------

function ratio(path, i) {
  const [p, q] = [path.ps[i][path.drafts[i]], path.qs[i][path.drafts[i]]];
  return q.n > 0n ? div(p, q) : ONE;
}

function runningSums(weights) {
  const total = sum(weights);
  let running = ZERO;
  return weights.map((weight) => div((running = add(running, weight)), total));
}

// Where each coin may change the run: one sorted list of borders a coin, 0 and 1 included.
export function borders(path, fault = {}) {
  const accept = path.drafts.map((_, i) => [ratio(path, i), ...(fault.acceptCuts?.(path, i) ?? [])]);
  const laws = [...path.qs.map((q, i) => residual(path.ps[i], q)), path.ps.at(-1)];
  const final = [...laws, ...(fault.finalLaws?.(path) ?? [])].flatMap(runningSums);
  return [...accept, final].map((cuts) => {
    const inside = cuts.filter((cut) => less(ZERO, cut) && less(cut, ONE));
    const unique = new Map([ZERO, ...inside, ONE].map((cut) => [key(cut), cut]));
    return [...unique.values()].sort((a, b) => (less(a, b) ? -1 : 1));
  });
}

const cross = (lists) =>
  lists.reduce((rows, list) => rows.flatMap((row) => list.map((entry) => [...row, entry])), [[]]);

// Every box of coins of a path with the run that is emitted in it.
export function cells(path, fault = {}) {
  const half = frac(1, 2);
  const sides = borders(path, fault).map((cuts) =>
    cuts.slice(1).map((high, i) => ({ low: cuts[i], high })),
  );
  return cross(sides).map((box) => {
    const middle = box.map(({ low, high }) => mul(add(low, high), half));
    const volume = box.reduce((v, { low, high }) => mul(v, sub(high, low)), path.weight);
    return { path, box, volume, run: emit(path, middle.slice(0, -1), middle.at(-1), fault) };
  });
}

function texts(vocab, length) {
  return cross(Array.from({ length }, () => Array.from({ length: vocab }, (_, id) => id)));
}

const chance = (setting, text, from) =>
  text
    .slice(from)
    .reduce((v, token, i) => mul(v, setting.target(text.slice(0, from + i))[token]), ONE);

// The joint law of the first kappa + 1 tokens: runs are extended by plain sampling. Returns texts,
// their probability, the target's, the largest difference, half the sum of all, and E.
export function jointLaw(setting, fault = {}) {
  const length = setting.kappa + 1;
  const found = new Map(texts(setting.vocab, length).map((text) => [text.join(), ZERO]));
  const put = (text, mass) => found.set(text.join(), add(found.get(text.join()), mass));
  let emitted = ZERO;
  const all = paths(setting).flatMap((path) => cells(path, fault));
  const runs = new Map();
  for (const { run, volume } of all) {
    emitted = add(emitted, mul(volume, frac(run.length)));
    runs.set(run.join(), add(runs.get(run.join()) ?? ZERO, volume));
  }
  for (const [name, volume] of runs) {
    const run = name.split(",").map(Number);
    for (const more of texts(setting.vocab, length - run.length)) {
      const text = [...run, ...more];
      put(text, mul(volume, chance(setting, text, run.length)));
    }
  }
  const rows = [...found].map(([name, law]) => {
    const text = name.split(",").map(Number);
    return { text, law, target: chance(setting, text, 0) };
  });
  const differences = rows.map(({ law, target }) => abs(sub(law, target)));
  const deviation = differences.reduce((a, b) => (less(a, b) ? b : a), ZERO);
  const variation = mul(sum(differences), frac(1, 2));
  return { rows, deviation, variation, emitted, cells: all };
}

// --- the smallest counter-example -----------------------------------------------------------------

// The fraction with the smallest denominator strictly between two others.
export function simplestBetween(low, high) {
  const whole = low.n / low.d; // low >= 0
  if (less(frac(whole + 1n), high)) return frac(whole + 1n);
  const shifted = { low: sub(low, frac(whole)), high: sub(high, frac(whole)) };
  if (shifted.low.n === 0n) {
    const inverse = div(ONE, shifted.high);
    return add(frac(whole), div(ONE, frac(inverse.n / inverse.d + 1n)));
  }
  const inner = simplestBetween(div(ONE, shifted.high), div(ONE, shifted.low));
  return add(frac(whole), div(ONE, inner));
}

// The coins with the smallest denominators where the faulty rule emits another run than the right
// one; `edge` tells that they lie on a border, where no law can see them.
export function counterExample(setting, fault) {
  const found = [];
  const ask = (path, coins, edge) => {
    const [us, w] = [coins.slice(0, -1), coins.at(-1)];
    const [emitted, right] = [emit(path, us, w, fault), emit(path, us, w)];
    if (emitted.join() === right.join()) return;
    const size = coins.reduce((total, coin) => total + Number(coin.d), 0);
    found.push({ path, coins, emitted, right, edge, size });
  };
  const every = paths(setting);
  for (const { path, box } of every.flatMap((path) => cells(path, fault))) {
    ask(path, box.map(({ low, high }) => simplestBetween(low, high)), false);
  }
  if (!found.length) {
    for (const path of every) {
      const edges = borders(path, fault).map((cuts) => cuts.filter((cut) => less(cut, ONE)));
      for (const coins of cross(edges)) ask(path, coins, true);
    }
  }
  return found.reduce((best, one) => (best && best.size <= one.size ? best : one), null);
}
