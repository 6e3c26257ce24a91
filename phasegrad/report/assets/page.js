// Draws the report's charts from the data in the page. Text from files goes in as text nodes, never as markup.
"use strict";
(() => {
  const started = performance.now();
  const { linearSplits, linearRange, logSplits, symmetricSplits, logRange, symmetricRange, smoothed, toSvg } = drawing;
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const COLOURS = 10, TIP_ROWS = 12, TABLE_ROWS = 25;
  const KINDS = { f32: Float32Array, f64: Float64Array, u16: Uint16Array, u32: Uint32Array };
  const envs = [...new Set(data.groups.map((group) => group.env))].sort();
  const state = { env: envs[0], axis: "steps", seeds: "band", logX: false, smoothing: 0, hidden: new Set(), zoom: { steps: null, seconds: null } };
  const views = [];

  data.runs.forEach((run, index) => { run.index = index; run.decoded = {}; });
  data.groups.forEach((group, index) => { group.index = index; group.runs = data.runs.filter((run) => run.group === index); });
  const anyEvaluated = data.groups.some((group) => group.evaluated);
  const groupsShown = () => data.groups.filter((group) => group.env === state.env);
  const runsShown = () => groupsShown().flatMap((group) => group.runs);
  const variants = [...new Set(data.groups.map((group) => group.variant))];

  // ---- small helpers ----
  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") made.className = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  }
  function decode([kind, text]) {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new KINDS[kind](bytes.buffer);
  }
  const axisOf = (run, axis) => (run.decoded[axis] ??= decode(run[axis]));
  function curveOf(run, metric, axis) { // [xs, ys], null where the value was no number
    const stored = run.curves[metric];
    if (!stored) return null;
    const places = axisOf(run, axis);
    const curve = (run.decoded["curve " + metric] ??= { index: decode(stored[0]), ys: Array.from(decode(stored[1]), (y) => (Number.isFinite(y) ? y : null)) });
    const xs = [], ys = [];
    curve.index.forEach((at, i) => {
      const x = places[at];
      if (xs.length && x <= xs[xs.length - 1]) return; // two iterations within one tick of the clock
      xs.push(x); ys.push(curve.ys[i]);
    });
    return [xs, ys];
  }
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const faded = (colour, alpha) => colour + Math.round(alpha * 255).toString(16).padStart(2, "0");
  // A slot is the name of a colour, which light, dark and print give a value each.
  function groupSlot(group) {
    return "--c" + (Math.max(0, envs.length > 1 ? variants.indexOf(group.variant) : groupsShown().indexOf(group)) % COLOURS);
  }
  function runSlot(run) { // one group alone: its seeds get colours of their own
    const groups = groupsShown();
    return groups.length === 1 ? "--c" + (groups[0].runs.indexOf(run) % COLOURS) : groupSlot(data.groups[run.group]);
  }
  function runLabel(run) {
    const group = data.groups[run.group];
    return group.runs.length === 1 ? group.variant : `${group.variant}, seed ${run.seed}`;
  }
  function short(value) {
    if (value == null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value), minus = value < 0 ? "−" : "";
    const trim = (x, unit) => minus + String(+x.toPrecision(4)) + unit;
    if (size >= 1e9) return trim(size / 1e9, "G");
    if (size >= 1e6) return trim(size / 1e6, "M");
    if (size >= 1e4) return trim(size / 1e3, "k");
    if (size !== 0 && size < 1e-3) return minus + size.toExponential(2).replace(/\.?0+e/, "e").replace("-", "−");
    return trim(size, "");
  }
  const exact = (value) => Math.round(value).toLocaleString("en").replace("-", "−");
  function clock(seconds) {
    if (seconds < 60) return `${+seconds.toPrecision(3)} s`;
    const whole = Math.round(seconds), h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60, s = whole % 60;
    return h ? `${h} h${m ? ` ${m} min` : ""}` : `${m} min${s ? ` ${s} s` : ""}`;
  }
  const AXES = {
    steps: { name: "environment steps", tick: short, value: (x) => exact(x) + " steps" },
    seconds: { name: "wall-clock time", tick: (x) => clock(x).replace(/ (h|min|s)/g, (_, unit) => unit[0]).replace(/ /g, ""), value: clock, steps: [0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 432000, 864000] },
    epoch: { name: "epoch", tick: (x) => (Number.isInteger(x) ? String(x) : ""), value: (x) => "epoch " + x, steps: [1, 2, 5, 10, 20, 50, 100, 200, 500] },
    score: { name: "score", tick: short, value: (x) => "score above " + short(x) },
  };

  // ---- what a chart draws: lines {label, colour, xs, ys, dash, width, runs, group} and bands over seeds ----
  function metricLines(spec) {
    return spec.metrics.flatMap(([metric, word], which) => runsShown().flatMap((run) => {
      const curve = curveOf(run, metric, state.axis);
      if (!curve) return [];
      const label = spec.metrics.length > 1 ? `${runLabel(run)} (${word})` : runLabel(run);
      const family = groupsShown().length > 1 ? data.groups[run.group].variant : runLabel(run); // what a short legend says
      return [{ label, family: spec.metrics.length > 1 ? `${family} (${word})` : family, slot: runSlot(run), curve, dash: which ? [5, 4] : null, width: 1.4, runs: [run.index] }];
    }));
  }
  // The evaluation is the score; a group without any shows its training returns, dashed and by that name.
  const EVALUATED = [["eval_return_mean", "training levels"], ["eval_test_return_mean", "test levels"]];
  const TRAINED = "training return, last 100 episodes";
  function learningLines(spec) {
    return (spec.env ? data.groups.filter((group) => group.env === spec.env) : groupsShown()).flatMap((group) => {
      if (spec.training) return seedLines(group, "return_mean", spec.axis, "", null);
      if (!group.evaluated) return seedLines(group, "return_mean", spec.axis, anyEvaluated ? TRAINED : "", anyEvaluated ? [2, 3] : null);
      const drawn = EVALUATED.filter(([metric]) => group.runs.some((run) => run.curves[metric]));
      const scores = drawn.flatMap(([metric, word], which) => seedLines(group, metric, spec.axis, drawn.length > 1 ? word : "", which ? [5, 4] : null));
      if (scores.some((line) => line.curve[0].length > 1)) return scores;
      const way = seedLines(group, "return_mean", spec.axis, TRAINED, [2, 3]); // one evaluation at the end: the way there, faint and by its name
      return [...way.map(({ low, high, ...line }) => ({ ...line, faint: true, width: 1.5 })), ...scores];
    });
  }
  function seedLines(group, metric, axis, word, dash) { // the seeds as one band, or a line each
    const band = group.bands[metric]?.[axis], slot = groupSlot(group), named = (label) => (word ? `${label}, ${word}` : label);
    const few = metric.startsWith("eval_") && axis === "steps"; // evaluations are few: each is marked
    if (band && state.seeds === "band") {
      const runs = group.runs.filter((run) => run.curves[metric]).map((run) => run.index);
      return [{ label: named(`${group.variant}, ${band.seeds > 3 ? "IQM" : "mean"} of ${band.seeds} seeds`), slot, curve: [band.grid, band.middle],
        ...(band.low ? { low: band.low, high: band.high } : {}), width: 2.2, dash, runs, points: few && band.grid.length <= 40 }];
    }
    return group.runs.flatMap((run) => {
      const curve = curveOf(run, metric, axis);
      return curve ? [{ label: named(runLabel(run)), slot: runSlot(run), curve, width: group.runs.length > 1 ? 1.5 : 2, dash, runs: [run.index], points: few && curve[0].length <= 40 }] : [];
    });
  }
  function epochLines(spec) {
    return groupsShown().flatMap((group) => Object.entries(group.epochs[spec.metric] ?? {}).map(([part, means]) => ({
      label: `${group.variant}, ${part}`, slot: groupSlot(group), dash: part.startsWith("first") ? [5, 4] : null, width: 2, points: true,
      curve: [means.map((_, i) => i + 1), means], runs: group.runs.map((run) => run.index),
    })));
  }
  function profileLines() {
    return Object.entries(data.profile.variants).map(([variant, line]) => ({
      label: variant, slot: "--c" + (Math.max(0, envs.length > 1 ? variants.indexOf(variant) : groupsShown().findIndex((g) => g.variant === variant)) % COLOURS),
      curve: [data.profile.thresholds, line.middle], ...(line.low ? { low: line.low, high: line.high } : {}), width: 2.2,
      runs: data.groups.filter((group) => group.variant === variant).flatMap((group) => group.runs.map((run) => run.index)),
    }));
  }

  // ---- one chart ----
  class ChartView {
    constructor(spec, parent) {
      this.spec = spec; this.plot = null; this.logY = false; this.seen = false;
      const id = "chart-" + views.length;
      this.logButton = element("button", { type: "button", "aria-pressed": "false", "aria-label": `Logarithmic axis for ${spec.title}`, onclick: () => {
        this.logY = !this.logY; this.logButton.setAttribute("aria-pressed", String(this.logY)); this.build();
      } }, "log");
      const head = element("div", { class: "chart-head" }, element("h3", { id }, spec.title));
      if (!spec.noLog) head.append(this.logButton);
      this.area = element("div", { class: "plot", role: "img" });
      this.tip = element("div", { class: "tip", hidden: "" });
      this.table = element("div");
      this.details = element("details", { ontoggle: () => this.fillTable() }, element("summary", {}, "Values as a table"), this.table);
      this.box = element("section", { class: "chart", "aria-labelledby": id }, head);
      if (spec.note) this.box.append(element("p", { class: "chart-note" }, spec.note));
      const key = lineKey(spec);
      if (key) this.box.append(key);
      this.paper = element("div", { class: "on-paper" });
      const download = (name, make) => element("button", { type: "button", "aria-label": `${spec.title} as ${name}`, onclick: make }, name);
      const foot = element("div", { class: "chart-foot" }, this.details, element("div", { class: "downloads" },
        download("PNG", () => exporting.png(spec.title, this.svg(css))), download("SVG", () => exporting.save(exporting.fileName(spec.title, ".svg"), exporting.svgText(this.svg(css)), "image/svg+xml")),
        download("CSV", () => exporting.save(exporting.fileName(spec.title, ".csv"), exporting.csv(exporting.curveRows(spec.axisName ?? AXES[this.axis].name, this.plain())), "text/csv"))));
      this.box.append(this.area, this.paper, foot);
      parent.append(this.box);
      views.push(this);
      watcher.observe(this.box);
    }
    get axis() { return this.spec.axis ?? state.axis; }
    get logX() { return state.logX && this.axis in state.zoom; }
    prepared() { // the lines as drawn: from 0 up on a logarithmic axis, smoothed with the raw curve faint behind
      return this.spec.lines(this.spec).map((line) => (this.logX && !(line.curve[0][0] > 0) ? positiveFrom(line) : line)).filter((line) => line.curve[0].length)
        .flatMap((line) => (!state.smoothing || line.low || line.points || !(this.axis in state.zoom) ? [line] :
          [{ ...line, ghost: true, width: 0.8 }, { ...line, label: line.label + ", smoothed", curve: [line.curve[0], smoothed(line.curve[1], state.smoothing)], width: 1.8 }]));
    }
    plain() { // the values behind the lines that are shown, never smoothed
      return this.spec.lines(this.spec).filter((line) => this.visible(line)).map((line) => ({ ...line, xs: line.curve[0], ys: line.curve[1] }));
    }
    svg(colour, paper = false) { // this chart as it stands: its axes, zoom and visible lines
      const lines = this.prepared().filter((line) => this.visible(line)).map((line) => ({ ...line, xs: line.curve[0], ys: line.curve[1] }));
      const axis = AXES[this.axis], zoomed = this.axis in state.zoom && !this.spec.env ? state.zoom[this.axis] : null;
      const places = lines.flatMap((line) => [line.xs[0], line.xs[line.xs.length - 1]]);
      let [from, to] = zoomed ?? [Math.min(...places), Math.max(...places)];
      if (!(to > from)) to = from + (Math.abs(from) || 1);
      const inside = lines.flatMap((line) => [line.ys, line.low ?? [], line.high ?? []].flatMap((ys) => ys.filter((y, i) => y != null && line.xs[i] >= from && line.xs[i] <= to)));
      const { kind, unit, range } = this.yAxis(inside), span = inside.reduce(([a, b], y) => [Math.min(a, y), Math.max(b, y)], [Infinity, -Infinity]);
      const [low, high] = Array.isArray(range) ? range : range(null, inside.length ? span[0] : null, inside.length ? span[1] : null);
      return toSvg({ title: paper ? "" : this.spec.title, xName: this.spec.axisName ?? axis.name, width: paper ? 520 : 760, height: paper ? 190 : 330, colour, background: !paper, lines,
        x: { min: from, max: to, log: this.logX, tick: axis.tick, steps: axis.steps }, y: { min: low, max: high, kind, unit, tick: short }, healthy: this.spec.healthy, stepped: this.spec.stepped });
    }
    yAxis(values) { // linear, logarithmic, or logarithmic on both sides of 0
      let low = Infinity, high = 0;
      for (const y of values) { low = Math.min(low, y); high = Math.max(high, Math.abs(y)); }
      const unit = high / 100 || 1; // where a symmetric logarithmic axis turns linear
      if (!this.logY) return { kind: "linear", unit, low, range: this.spec.range ?? linearRange };
      return low > 0 ? { kind: "log", unit, low, range: logRange } : { kind: "symmetric", unit, low, range: symmetricRange };
    }
    visible(line) { return line.runs.some((run) => !state.hidden.has(run)); }

    build() {
      if (!this.seen) return;
      this.plot?.destroy();
      this.plot = null;
      const logX = this.logX;
      this.lines = this.prepared();
      this.box.hidden = !this.lines.length && !this.spec.keep;
      this.area.replaceChildren();
      if (!this.lines.length) { this.area.append(element("p", { class: "empty" }, "No values for this environment.")); return; }
      const tables = [], series = [{}], bands = [], places = [];
      for (const line of this.lines) {
        line.colour = line.ghost || line.faint ? faded(css(line.slot), line.ghost ? 0.3 : 0.8) : css(line.slot);
        const show = this.visible(line), [xs, ys] = line.curve;
        places.push(series.length);
        tables.push([xs, ys]);
        series.push({ label: line.label, stroke: line.colour, width: line.width, dash: line.dash ?? undefined, show,
          ...(this.spec.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}),
          points: { show: Boolean(line.points) || ys.length === 1, fill: css("--surface") } });
        if (line.low) {
          for (const edge of [line.high, line.low]) {
            tables.push([xs, edge]);
            series.push({ stroke: "transparent", width: 0, show, ...(this.spec.stepped ? { paths: uPlot.paths.stepped({ align: 1 }) } : {}), points: { show: false }, edge: true });
          }
          bands.push({ series: [series.length - 2, series.length - 1], fill: faded(line.colour, 0.2) });
        }
      }
      this.places = places;
      const joined = uPlot.join(tables.map(([xs, ys]) => [xs, ys]), tables.map(() => [0, 1]));
      const values = [];
      for (const [, ys] of tables) for (const y of ys) if (y != null) values.push(y);
      const { kind, unit, low, range } = this.yAxis(values);
      const yScale = { range, ...(kind === "log" ? { distr: 3 } : kind === "symmetric" ? { distr: 4, asinh: unit } : {}) };
      this.logButton.textContent = kind === "symmetric" ? "± log" : "log";
      const axis = AXES[this.axis], quiet = css("--quiet"), grid = { stroke: css("--grid"), width: 1 };
      const zoomable = this.axis in state.zoom && !this.spec.env, font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
      const options = {
        width: this.area.clientWidth || 320, height: this.height(), series, bands,
        legend: { show: false },
        scales: { x: { time: false, distr: logX ? 3 : 1, ...(logX ? { range: (_, min, max) => [min, max > min ? max : min * 10] } : {}), ...(zoomable && state.zoom[this.axis] ? { min: state.zoom[this.axis][0], max: state.zoom[this.axis][1] } : {}) }, y: yScale },
        axes: [
          { stroke: quiet, font, labelFont: font, grid, ticks: grid, label: this.spec.axisName ?? axis.name, labelSize: 20, size: 34,
            filter: (_, splits) => splits,
            splits: (plot, which, min, max) => (logX ? logSplits(min, max) : linearSplits(min, max, plot.bbox.width / devicePixelRatio / (window.innerWidth < 640 ? 54 : 58), axis.steps)), values: (_, splits) => splits.map((x) => (x == null ? "" : axis.tick(x))) },
          { stroke: quiet, font, grid, ticks: grid, size: 58,
            filter: (_, splits) => splits,
            splits: (plot, which, min, max) => (!this.logY ? linearSplits(min, max, plot.bbox.height / devicePixelRatio / 30) : low > 0 ? logSplits(min, max) : symmetricSplits(min, max, unit)), values: (_, splits) => splits.map((y) => (y == null ? "" : short(y))) },
        ],
        cursor: {
          y: false, drag: { x: true, y: false, setScale: !zoomable }, sync: zoomable ? { key: "runs-" + this.axis, setSeries: false } : undefined,
          points: { size: 7 },
          dataIdx: (plot, index, closest) => nearest(plot.data[index], closest),
          ...(zoomable ? { bind: { dblclick: () => () => zoom(this.axis, null) } } : {}),
        },
        hooks: {
          drawClear: [(plot) => shade(plot, this.spec.healthy)],
          setCursor: [(plot) => this.showTip(plot)],
          setSelect: [(plot) => {
            if (!zoomable || plot.select.width < 4) return;
            const range = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
            plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            zoom(this.axis, range);
          }],
          ready: [(plot) => { if (zoomable) pinch(plot, this.axis); }],
        },
      };
      this.plot = new uPlot(options, joined, this.area);
      this.plot.over.append(this.tip);
      this.describe();
      if (this.details.open) this.fillTable();
    }
    height() { return window.innerWidth < 640 ? 220 : this.spec.wide ? 290 : 210; }
    resize() { if (this.plot && this.area.clientWidth) this.plot.setSize({ width: this.area.clientWidth, height: this.height() }); }
    applyVisibility() {
      if (!this.plot) return;
      this.plot.batch(() => this.lines.forEach((line, i) => {
        const show = this.visible(line), end = this.places[i + 1] ?? this.plot.series.length;
        for (let at = this.places[i]; at < end; at++) if (this.plot.series[at].show !== show) this.plot.setSeries(at, { show });
      }));
      this.describe();
      if (this.details.open) this.fillTable();
    }
    describe() {
      const shown = this.lines.filter((line) => this.visible(line) && !line.ghost);
      const ends = shown.slice(0, 8).map((line) => `${line.label} ends at ${short(lastOf(line.curve[1]))}`).join("; ");
      this.area.setAttribute("aria-label", `${this.spec.title} against ${this.spec.axisName ?? AXES[this.axis].name}, ${shown.length} curves. ${ends}.`);
    }
    showTip(plot) {
      const { left, top, idxs } = plot.cursor;
      if (left < 0 || plot.cursor.event == null || !plot.over.matches(":hover, [data-touched]")) { this.tip.hidden = true; return; }
      const found = [];
      this.lines.forEach((line, i) => {
        const at = idxs?.[this.places[i]];
        if (at == null || line.ghost || !plot.series[this.places[i]].show) return;
        const y = plot.data[this.places[i]][at];
        if (y == null) return;
        const row = { line, y, x: plot.data[0][at], far: Math.abs(plot.valToPos(y, "y") - top) };
        if (line.low) row.span = [plot.data[this.places[i] + 2][at], plot.data[this.places[i] + 1][at]];
        found.push(row);
      });
      if (!found.length) { this.tip.hidden = true; return; }
      const closest = found.reduce((a, b) => (b.far < a.far ? b : a));
      const rows = (found.length > TIP_ROWS ? [...found].sort((a, b) => a.far - b.far).slice(0, TIP_ROWS) : found).sort((a, b) => b.y - a.y);
      this.tip.replaceChildren(element("div", { class: "tip-x" }, AXES[this.axis].value(closest.x)));
      for (const row of rows) {
        const swatch = element("span", { class: "swatch" });
        swatch.style.background = row.line.colour;
        const value = short(row.y) + (row.span ? ` (${short(row.span[0])} to ${short(row.span[1])})` : "");
        const name = element("span", { class: "tip-name" }, row.line.label);
        if (row === closest && rows.length > 1) name.style.fontWeight = "600";
        this.tip.append(element("div", { class: "tip-row" }, swatch, name, element("b", {}, value)));
      }
      if (found.length > rows.length) this.tip.append(element("div", { class: "tip-x" }, `the nearest ${rows.length} of ${found.length}`));
      this.tip.hidden = false;
      const width = this.tip.offsetWidth, room = plot.over.clientWidth;
      this.tip.style.left = (left + 14 + width <= room ? left + 14 : Math.max(-50, left - 14 - width)) + "px";
      this.tip.style.top = Math.max(-20, Math.min(top - 10, plot.over.clientHeight - this.tip.offsetHeight)) + "px";
    }
    fillTable() {
      if (!this.details.open || !this.plot) { this.table.replaceChildren(); return; }
      const shown = this.lines.map((line, i) => [line, this.places[i]]).filter(([line]) => this.visible(line) && !line.ghost).slice(0, 40);
      const xs = this.plot.data[0], count = Math.min(TABLE_ROWS, xs.length);
      const head = element("tr", {}, element("th", { scope: "col" }, this.spec.axisName ?? AXES[this.axis].name), ...shown.map(([line]) => element("th", { scope: "col", class: "number" }, line.label)));
      const body = element("tbody");
      for (let i = 0; i < count; i++) {
        const at = count === 1 ? 0 : Math.round((i * (xs.length - 1)) / (count - 1));
        body.append(element("tr", {}, element("th", { scope: "row" }, this.axis === "steps" ? exact(xs[at]) : AXES[this.axis].tick(xs[at]) || short(xs[at])),
          ...shown.map(([, place]) => { const near = nearest(this.plot.data[place], at); return element("td", { class: "number" }, short(near == null ? null : this.plot.data[place][near])); })));
      }
      this.table.replaceChildren(element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": this.spec.title + " as a table" },
        element("table", {}, element("caption", {}, `${count} of ${exact(xs.length)} places; each curve's value nearest to it`), element("thead", {}, head), body)));
    }
  }
  function shade(plot, healthy) { // the healthy range, behind the curves
    if (!healthy) return;
    const { left, top, width, height } = plot.bbox, [low, high] = healthy.map((y) => Math.min(Math.max(plot.valToPos(y, "y", true), top), top + height));
    if (!Number.isFinite(low) || !Number.isFinite(high) || low - high < 1) return;
    plot.ctx.save();
    plot.ctx.fillStyle = faded(css("--good"), 0.1);
    plot.ctx.fillRect(left, high, width, low - high);
    plot.ctx.restore();
  }
  function positiveFrom(line) { // a logarithmic axis begins after 0
    const first = line.curve[0].findIndex((x) => x > 0), cut = (values) => (first < 0 ? [] : values.slice(first));
    return { ...line, curve: line.curve.map(cut), ...(line.low ? { low: cut(line.low), high: cut(line.high) } : {}) };
  }
  function nearest(ys, at) { // the closest index with a value: curves share an axis but not their places; none beyond a curve's ends
    if (ys[at] != null) return at;
    let left = at - 1, right = at + 1;
    while (left >= 0 && ys[left] === undefined) left--;
    while (right < ys.length && ys[right] === undefined) right++;
    const before = ys[left] != null, after = ys[right] != null;
    if (left < 0 || right >= ys.length) { // just outside counts as the end itself only next to it
      const end = before ? left : after ? right : null;
      return end != null && Math.abs(end - at) <= ys.length / 100 ? end : null;
    }
    return before && (!after || at - left <= right - at) ? left : after ? right : null;
  }
  const lastOf = (ys) => { for (let i = ys.length - 1; i >= 0; i--) if (ys[i] != null) return ys[i]; return null; };
  function lineKey(spec) {
    const words = spec.key ?? (spec.metrics?.length > 1 ? spec.metrics.map(([, word]) => word) : []);
    if (!words.length) return null;
    const key = element("p", { class: "chart-key" });
    words.forEach((word, i) => {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      for (const [name, value] of Object.entries({ width: 26, height: 8, "aria-hidden": "true" })) svg.setAttribute(name, value);
      for (const [name, value] of Object.entries({ d: "M0 4H26", stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": i ? "5 4" : "none" })) path.setAttribute(name, value);
      svg.append(path);
      key.append(element("span", {}, svg, word));
    });
    return key;
  }
  function pinch(plot, axis) { // two fingers zoom, one shows values
    let begun = null;
    const spread = (touches) => [touches[0].clientX, touches[1].clientX].sort((a, b) => a - b);
    const over = plot.over, at = (x) => plot.posToVal(x - over.getBoundingClientRect().left, "x");
    const point = (touch) => {
      const box = over.getBoundingClientRect();
      over.dataset.touched = "";
      plot.cursor.event = touch;
      plot.setCursor({ left: touch.clientX - box.left, top: touch.clientY - box.top });
    };
    over.addEventListener("touchstart", (event) => {
      if (event.touches.length === 2) begun = spread(event.touches).map(at);
      else if (event.touches.length === 1) point(event.touches[0]);
    }, { passive: true });
    over.addEventListener("touchmove", (event) => {
      if (event.touches.length === 1) { point(event.touches[0]); return; }
      if (event.touches.length !== 2 || !begun) return;
      event.preventDefault();
      const [a, b] = spread(event.touches), box = over.getBoundingClientRect();
      if (b - a < 20) return;
      const scale = (begun[1] - begun[0]) / (b - a), low = begun[0] - (a - box.left) * scale;
      zoom(axis, [low, low + box.width * scale]);
    }, { passive: false });
    over.addEventListener("touchend", () => { begun = null; delete over.dataset.touched; });
  }
  function zoom(axis, range) {
    state.zoom[axis] = range;
    for (const view of views) {
      if (!view.plot || view.axis !== axis || view.spec.env) continue;
      if (range) view.plot.setScale("x", { min: range[0], max: range[1] });
      else { const xs = view.plot.data[0]; view.plot.setScale("x", { min: xs[0], max: xs[xs.length - 1] }); }
    }
    resetButton.hidden = !state.zoom.steps && !state.zoom.seconds;
  }

  // ---- the controls ----
  const controls = document.getElementById("controls");
  const legend = element("div", { class: "legend", id: "legend", role: "group", "aria-label": "Show or hide" });
  const seedLegend = element("div", { class: "legend", role: "group", "aria-label": "Show or hide single runs" });
  const seedDetails = element("details", { id: "seeds" }, element("summary", {}, "Single runs"), seedLegend);
  const resetButton = element("button", { type: "button", hidden: "", onclick: () => { zoom("steps", null); zoom("seconds", null); } }, "Reset zoom");
  const rebuild = () => views.forEach((view) => view.build());
  function choice(label, options, value, change) {
    const select = element("select", { onchange: () => change(select.value) }, ...options.map(([key, name]) => element("option", { value: key }, name)));
    select.value = value;
    return element("label", { class: "choice" }, label, select);
  }
  function chip(label, colour, runs) {
    const on = runs.some((run) => !state.hidden.has(run.index));
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = colour;
    return element("button", { type: "button", class: "chip", "aria-pressed": String(on), onclick: () => {
      const hide = runs.some((run) => !state.hidden.has(run.index));
      runs.forEach((run) => (hide ? state.hidden.add(run.index) : state.hidden.delete(run.index)));
      fillLegend();
      views.forEach((view) => view.applyVisibility());
    } }, swatch, label);
  }
  function fillLegend() {
    const focus = [legend, seedLegend].map((box) => [...box.children].indexOf(document.activeElement));
    const families = envs.length > 1 ? variants.map((name) => data.groups.filter((group) => group.variant === name)) : groupsShown().map((group) => [group]);
    legend.replaceChildren(...families.map((family) => chip(envs.length > 1 ? family[0].variant :
      family[0].runs.length > 1 ? `${family[0].variant} (${family[0].runs.length} seeds)` : family[0].variant, css(groupSlot(family[0])), family.flatMap((group) => group.runs))));
    seedLegend.replaceChildren(...runsShown().map((run) => chip(`${run.name} (seed ${run.seed})`, css(runSlot(run)), [run])));
    seedDetails.hidden = groupsShown().every((group) => group.runs.length === 1);
    [legend, seedLegend].forEach((box, i) => box.children[focus[i]]?.focus());
  }
  const logX = element("button", { type: "button", "aria-pressed": "false", onclick: () => {
    state.logX = !state.logX; logX.setAttribute("aria-pressed", String(state.logX)); rebuild();
  } }, "log x");
  if (envs.length > 1) controls.append(choice("Environment", envs.map((env) => [env, env]), state.env, (env) => { state.env = env; state.zoom = { steps: null, seconds: null }; nameDetail(); fillLegend(); rebuild(); zoom("steps", null); }));
  controls.append(legend, choice("x axis", [["steps", "steps"], ["seconds", "wall-clock"]], "steps", (axis) => { state.axis = axis; rebuild(); }));
  if (data.groups.some((group) => group.runs.length > 1)) controls.append(choice("Seeds", [["band", "IQM and 95 % band"], ["lines", "one line each"]], "band", (seeds) => { state.seeds = seeds; rebuild(); }));
  controls.append(choice("Smoothing", [["0", "none"], ["0.6", "light"], ["0.9", "strong"]], "0", (weight) => { state.smoothing = Number(weight); rebuild(); }), logX, resetButton, seedDetails);
  controls.hidden = false;
  fillLegend();

  // ---- the charts, each drawn when it comes near the window ----
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const view = views.find((candidate) => candidate.box === entry.target);
      if (entry.isIntersecting && !view.seen) { view.seen = true; watcher.unobserve(view.box); view.build(); }
    }
  }, { rootMargin: "700px" });
  const learning = document.getElementById("charts-learning");
  if (envs.length > 1) {
    const all = element("div", { class: "charts" });
    learning.before(all);
    for (const env of envs) new ChartView({ title: env, axis: "steps", env, lines: learningLines }, all);
  }
  const detail = element("h3", { class: "detail" });
  const nameDetail = () => { detail.textContent = envs.length > 1 ? `In detail: ${state.env}` : ""; };
  learning.before(detail);
  nameDetail();
  const against = { steps: "environment steps", seconds: "wall-clock time" };
  for (const axis of ["steps", "seconds"]) {
    new ChartView({ title: `${anyEvaluated ? "Score in evaluation" : "Training return"} against ${against[axis]}`, axis, lines: learningLines, wide: true, keep: true,
      note: anyEvaluated ? "Mean return of whole episodes, greedy actions, in environments of their own: the score." : "Training episodes, sampled actions, last 100. These runs have no evaluation.",
      key: data.groups.some((group) => group.runs.some((run) => run.curves.eval_test_return_mean)) ? ["training levels", "test levels"] : [] }, learning);
  }
  for (const axis of anyEvaluated ? ["steps", "seconds"] : []) {
    new ChartView({ title: `Training return against ${against[axis]}`, axis, lines: learningLines, training: true, wide: true, keep: true,
      note: "Training episodes, sampled actions, last 100: what the agent got while it explored and learnt. It lags behind the score." }, learning);
  }
  if (data.profile) {
    new ChartView({ title: "Performance profile", note: "The fraction of runs whose final score lies above the place on the axis, with its 95 % interval. Higher and further right is better. The scale: " + data.profile.scale + "." +
      (data.profile.left_out.length ? ` Left out, for all runs there are equal or the study has no scale: ${data.profile.left_out.join(", ")}.` : ""),
      axis: "score", axisName: data.profile.scaled ? "normalised score" : data.profile.scale, lines: profileLines, wide: true, noLog: true, stepped: true, range: [0, 1.02] }, document.getElementById("charts-profile"));
  }
  const home = document.getElementById("metric-sections");
  for (const [name, { charts, constant, epochs }] of Object.entries(data.sections)) {
    const id = "section-" + name.toLowerCase().replace(/[^a-z0-9]+/g, "-"), box = element("div", { class: "charts" });
    home.append(element("section", { "aria-labelledby": id }, element("h2", { id }, name), box,
      ...(constant.length ? [element("p", { class: "quiet" }, "Constant throughout: " + constant.join(", ") + ".")] : [])));
    for (const chart of charts) new ChartView({ ...chart, lines: metricLines }, box);
    for (const { metric, title, axis, note } of epochs) {
      new ChartView({ title, metric, axis: "epoch", axisName: axis, lines: epochLines, note, key: ["last third of the run", "first third"] }, box);
    }
  }
  new ResizeObserver(() => views.forEach((view) => view.resize())).observe(document.querySelector("main"));
  document.getElementById("theme").addEventListener("click", () => {
    const dark = css("color-scheme") === "dark" || getComputedStyle(document.documentElement).colorScheme === "dark";
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    fillLegend(); rebuild();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { fillLegend(); rebuild(); });
  // ---- paper: charts are drawn as vectors, in the colours that print has, whether they were seen on the screen or not ----
  const onPaper = (slot) => `var(${slot})`;
  function toPaper() {
    for (const view of views) {
      const lines = view.spec.lines(view.spec).filter((line) => line.curve[0].length && view.visible(line));
      view.box.classList.toggle("nothing", !lines.length);
      view.paper.replaceChildren(...(lines.length ? [view.svg(onPaper, true)] : []));
    }
  }
  window.addEventListener("beforeprint", toPaper);
  window.addEventListener("afterprint", () => views.forEach((view) => view.paper.replaceChildren()));

  // ---- tables to take away ----
  for (const region of document.querySelectorAll("main .scroll")) {
    const table = region.querySelector("table"), name = table.caption?.innerText ?? "table";
    const button = (words, make) => { const made = element("button", { type: "button", "aria-label": `${name}: ${words}`, onclick: async () => {
      try { await make(); made.textContent = "Done"; } catch (error) { made.textContent = "Not possible here"; }
      setTimeout(() => { made.textContent = words; }, 1500);
    } }, words); return made; };
    region.after(element("div", { class: "downloads of-table" }, button("Copy Markdown", () => exporting.copy(exporting.markdown(table))),
      button("Copy LaTeX", () => exporting.copy(exporting.latex(table))), button("CSV", async () => exporting.save(exporting.fileName(name, ".csv"), exporting.tableCsv(table), "text/csv"))));
  }
  // A video prints as its first frame.
  for (const video of document.querySelectorAll("video")) {
    video.addEventListener("loadeddata", () => {
      const frame = element("canvas", { width: video.videoWidth, height: video.videoHeight });
      frame.getContext("2d").drawImage(video, 0, 0);
      video.after(element("img", { class: "still", alt: video.getAttribute("aria-label"), src: frame.toDataURL("image/jpeg", 0.9) }));
    }, { once: true });
  }
  window.phasegradReport = { toPaper, exporting, data, state, views, zoom, milliseconds: performance.now() - started };
})();
