// Runs the policy of the last section: sliders for the observation, bars for what the agent does. Text goes in as text nodes.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("try-data").textContent);
  const root = document.getElementById("try-policy"), status = document.getElementById("try-status");
  const ARRAYS = {
    float32: Float32Array, int64: BigInt64Array, int32: Int32Array, int16: Int16Array, int8: Int8Array, uint8: Uint8Array, bool: Uint8Array,
  };
  const shown = { values: {}, mask: data.mask.map(() => 1), state: new Float32Array(data.state), after: null, steps: 0 };
  let runtime = null, session = null, turn = Promise.resolve(), bars = [];

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }
  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const short = (number) => (Number.isInteger(number) ? String(number) : number.toPrecision(4));

  // ---- the policy ----
  function tensor(type, numbers, shape) {
    const array = type === "int64" ? BigInt64Array.from(numbers, (number) => BigInt(Math.round(number))) : ARRAYS[type].from(numbers);
    return new runtime.Tensor(type, array, [1, ...shape]);
  }
  async function run(values, mask, state) {
    const feeds = {};
    for (const entry of data.entries) feeds[entry.name] = tensor(entry.type, values[entry.name], entry.shape);
    if (data.mask.length) feeds.action_mask = tensor("bool", mask, [data.mask.length]);
    if (data.state) feeds.state = tensor("float32", state, [data.state]);
    const found = await session.run(feeds);
    const numbers = (name) => Array.from(found[name].data, Number);
    return {
      action: Object.fromEntries(data.parts.map((part) => [part.output, numbers(part.output)])),
      params: numbers("params"), value: data.value ? numbers("value")[0] : null,
      state: data.state ? Float32Array.from(found.next_state.data) : shown.state,
    };
  }
  const one = (task) => (turn = turn.then(task, task)); // the runtime takes one call after another
  const flat = (numbers) => [numbers].flat(Infinity);
  async function check() { // what the page computes is what predict computed when the page was written
    let state = new Float32Array(data.state), apart = 0;
    for (const example of data.examples) {
      const values = Object.fromEntries(data.entries.map((entry) => [entry.name, flat(example.inputs[entry.name])]));
      const found = await run(values, example.inputs.action_mask ?? [], state);
      state = found.state;
      for (const [name, wanted] of Object.entries(example.action))
        wanted.forEach((number, place) => { apart = Math.max(apart, Math.abs(number - found.action[name][place]) / Math.max(1, Math.abs(number))); });
    }
    return apart;
  }

  // ---- what is seen ----
  function probabilities(logits) {
    const top = Math.max(...logits), each = logits.map((logit) => Math.exp(logit - top));
    const sum = each.reduce((total, number) => total + number, 0);
    return each.map((number) => number / sum);
  }
  function rows(found) { // [label, share of the bar, text, chosen]
    const list = [];
    for (const part of data.parts) {
      const action = found.action[part.output], named = part.name ? `${part.name} ` : "";
      let at = part.params;
      if (part.bits) {
        action.forEach((bit, place) => {
          const likely = 1 / (1 + Math.exp(-found.params[at + place]));
          list.push([`${named}bit ${place}`, likely, `${bit} (1: ${(100 * likely).toFixed(1)} %)`, bit === 1]);
        });
      } else if (part.sizes.length) {
        part.sizes.forEach((size, place) => {
          const likely = probabilities(found.params.slice(at, at + size));
          likely.forEach((share, choice) => {
            const label = part.firsts[place] + choice, of = part.sizes.length > 1 ? `${place}: ` : "";
            list.push([`${named}${of}${label}`, share, `${(100 * share).toFixed(1)} %`, action[place] === label]);
          });
          at += size;
        });
      } else {
        action.forEach((number, place) => {
          const low = part.low[place], high = part.high[place], bounded = low !== null && high !== null && high > low;
          const share = bounded ? (number - low) / (high - low) : 0.5 + Math.atan(number) / Math.PI;
          list.push([`${named}${action.length > 1 ? place : "action"}`, share, short(number) + (bounded ? ` in ${short(low)} to ${short(high)}` : ""), true]);
        });
      }
    }
    if (found.value !== null) list.push(["value of this state", null, short(found.value), false]);
    return list;
  }
  async function show() {
    const found = await run(shown.values, shown.mask, shown.state);
    shown.after = found.state;
    shown.found = found;
    const list = rows(found);
    if (bars.length !== list.length) {
      bars = list.map(() => ({ label: element("span", { class: "try-label" }), fill: element("span", { class: "try-fill" }), text: element("span", { class: "try-text" }) }));
      outcome.replaceChildren(...bars.map((bar) => (bar.row = element("div", { class: "try-row" }, bar.label, element("span", { class: "try-bar" }, bar.fill), bar.text))));
    }
    list.forEach(([label, share, text, chosen], place) => {
      const bar = bars[place];
      bar.label.textContent = label;
      bar.text.textContent = text;
      bar.fill.parentElement.style.visibility = share === null ? "hidden" : "visible";
      bar.fill.style.width = `${100 * Math.min(1, Math.max(0, share ?? 0))}%`;
      bar.row.classList.toggle("try-chosen", chosen);
    });
  }
  const outcome = element("div", { class: "try-outcome", "aria-live": "polite" });
  const sliders = [];
  function slider(entry, place) {
    const size = entry.low.length, low = entry.low[place], high = entry.high[place];
    const label = `${entry.name}${size > 1 ? ` ${place}` : ""}`;
    const number = element("output", { class: "try-text" });
    const range = element("input", { type: "range", min: low, max: high, step: entry.whole ? 1 : "any", "aria-label": label });
    const put = () => { range.value = shown.values[entry.name][place]; number.textContent = short(shown.values[entry.name][place]); };
    range.addEventListener("input", () => { shown.values[entry.name][place] = Number(range.value); put(); if (session) one(show); });
    sliders.push(put);
    return element("label", { class: "try-row" }, element("span", { class: "try-label" }, label), range, number);
  }
  function allowed(label, place) {
    const box = element("input", { type: "checkbox" });
    box.addEventListener("change", () => { shown.mask[place] = box.checked ? 1 : 0; if (session) one(show); });
    sliders.push(() => { box.checked = shown.mask[place] === 1; });
    return element("label", { class: "try-allowed" }, box, label);
  }
  function choose(index) {
    const { inputs } = data.examples[index];
    for (const entry of data.entries) shown.values[entry.name] = flat(inputs[entry.name]).slice();
    if (data.mask.length) shown.mask = inputs.action_mask.slice();
    sliders.forEach((put) => put());
    return session ? one(show) : turn;
  }
  function build() {
    const button = (text, action) => element("button", { type: "button", onclick: action }, text);
    const observed = element("div", { class: "try-observation" }, element("h3", {}, "Observation"));
    choose(0);
    for (const entry of data.entries) entry.low.forEach((_, place) => observed.append(slider(entry, place)));
    if (data.mask.length) observed.append(element("h3", {}, "Allowed"), element("div", { class: "try-mask" }, ...data.mask.map(allowed)));
    const memory = element("span", { class: "quiet" }, "Remembers nothing yet.");
    const forget = () => { shown.state = new Float32Array(data.state); shown.steps = 0; memory.textContent = "Remembers nothing yet."; return one(show); };
    const step = () => { shown.state = shown.after; shown.steps++; memory.textContent = `Remembers ${shown.steps} steps.`; return one(show); };
    const buttons = element("div", { class: "try-buttons" }, element("span", { class: "quiet" }, "Seen in an episode:"), ...data.examples.map((_, index) => button(String(index + 1), () => choose(index))));
    if (data.state) buttons.append(button("Remember this step", step), button("New episode", forget), memory);
    const acts = element("div", { class: "try-action" }, element("h3", {}, "Action"), outcome);
    root.append(buttons, element("div", { class: "try-columns" }, observed, acts));
    sliders.forEach((put) => put());
    return { step, forget };
  }

  // ---- starting ----
  let started = null;
  async function begin() {
    status.textContent = "Starting ONNX Runtime Web …";
    try {
      runtime = globalThis.phasegradRuntime;
      if (!runtime) throw new Error("this browser does not run its script");
      const packed = new Blob([bytes(document.getElementById("try-runtime").textContent)]).stream();
      runtime.env.wasm.numThreads = 1;
      runtime.env.wasm.wasmBinary = await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
      session = await runtime.InferenceSession.create(bytes(data.onnx), { executionProviders: ["wasm"] });
      const apart = await check();
      const agrees = apart <= 1e-5;
      status.textContent = agrees
        ? `Agrees with predict on ${data.examples.length} observations, largest difference ${apart.toExponential(1)}.`
        : `Disagrees with predict by ${apart.toExponential(1)}: do not rely on it.`;
      status.classList.toggle("warning", !agrees);
      await one(show);
    } catch (error) {
      status.textContent = `The policy cannot be run here: ${error.message ?? error}`;
      status.classList.add("warning");
    }
  }
  const start = () => (started ??= begin());
  const verbs = build();
  new IntersectionObserver((seen, observer) => {
    if (seen.some((entry) => entry.isIntersecting)) { observer.disconnect(); start(); }
  }).observe(root);
  globalThis.phasegradTry = { start, run: (values, mask, state) => one(() => run(values, mask, state)), choose, shown, data, ...verbs };
})();
