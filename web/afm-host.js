// Shows anywidget front-end modules in a page without a kernel. A classic script, and each module is
// imported from a blob: browsers refuse to import an ES module by its address over file://.
(() => {
  const models = new Map();

  // What a figure's module asks of its model: state, and handlers called when it changes.
  class Model {
    constructor(state) {
      this.state = state;
      this.handlers = new Map();
    }

    get(name) {
      return this.state[name];
    }

    set(name, value) {
      if (this.state[name] === value) return;
      this.state[name] = value;
      this.call("change:" + name, value);
      this.call("change");
    }

    save_changes() {}

    on(names, handler) {
      for (const name of names.split(" ")) {
        if (!this.handlers.has(name)) this.handlers.set(name, new Set());
        this.handlers.get(name).add(handler);
      }
    }

    off(names, handler) {
      for (const name of names.split(" ")) this.handlers.get(name)?.delete(handler);
    }

    call(name, ...values) {
      for (const handler of [...(this.handlers.get(name) ?? [])]) handler(...values);
    }
  }

  async function load(source) {
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    try {
      return (await import(address)).default;
    } finally {
      URL.revokeObjectURL(address);
    }
  }

  function style(spec) {
    const id = "afm-css-" + spec.cls;
    if (!spec.css || document.getElementById(id)) return;
    const sheet = document.createElement("style");
    sheet.id = id;
    sheet.textContent = spec.css;
    document.head.append(sheet);
  }

  // Two places that show the same figure share one model.
  async function mount(tag) {
    const spec = JSON.parse(tag.textContent);
    const host = tag.parentElement;
    if (!models.has(spec.id)) {
      models.set(spec.id, { model: new Model(spec.state), widget: load(spec.esm) });
    }
    const { model, widget } = models.get(spec.id);
    const el = document.createElement("div");
    try {
      style(spec);
      host.append(el);
      await (await widget).render({ model, el });
      host.querySelector(".afm-fallback")?.remove();
      host.dataset.afm = "ready";
    } catch (error) {
      el.remove(); // the picture stays
      host.dataset.afm = "error";
      console.error("[figure]", error);
    }
  }

  const start = () => {
    document.querySelectorAll('script[type="application/x-afm+json"]').forEach(mount);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
