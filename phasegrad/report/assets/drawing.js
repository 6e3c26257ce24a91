// Ticks, ranges, smoothing, and a chart as an SVG of its own: for paper and for downloads.
"use strict";
const drawing = (() => {
  // Ticks and ranges come to an end for every range that a file may hold.
  function linearSplits(min, max, most, steps) {
    const rough = (max - min) / Math.max(most, 2), power = 10 ** Math.floor(Math.log10(rough));
    const step = steps?.find((each) => each >= rough) ?? [1, 2, 2.5, 5, 10].map((times) => times * power).find((each) => each >= rough * 0.999);
    const splits = [], first = Math.ceil(min / step);
    if (!(step > 0) || !Number.isFinite(first) || Math.abs(first) > 1e12) return [min, max];
    for (let i = 0; i < 50 && (first + i) * step <= max * (1 + 1e-12) + 1e-9 * step; i++) splits.push(+((first + i) * step).toPrecision(12));
    return splits;
  }
  function linearRange(_, min, max) {
    if (min == null) return [0, 1];
    const room = max > min ? 0.06 * (max - min) : 0.5 * Math.abs(min) || 1;
    return [min >= 0 && min - room < 0 ? 0 : min - room, max <= 0 && max + room > 0 ? 0 : max + room];
  }
  function logSplits(min, max) {
    const first = Math.floor(Math.log10(min)), last = Math.ceil(Math.log10(max)), splits = [];
    const every = Math.max(1, Math.ceil((last - first) / 7)), within = last - first <= 2 ? [1, 2, 5] : [1];
    for (let power = first; power <= last; power += every) for (const times of within) splits.push(times * 10 ** power);
    return splits.filter((y) => y >= min && y <= max);
  }
  function symmetricSplits(min, max, unit) {
    const splits = [0], top = Math.max(Math.abs(min), Math.abs(max)), first = Math.floor(Math.log10(unit)), last = Math.ceil(Math.log10(top));
    for (let power = first; power <= last && splits.length < 40; power++) splits.push(10 ** power, -(10 ** power));
    return splits.filter((y) => y >= min && y <= max).sort((a, b) => a - b);
  }
  const logRange = (_, min, max) => (min > 0 ? [min / 1.15, max * 1.15] : [0.1, 10]);
  const symmetricRange = (_, min, max) => { const room = 0.1 * Math.max(Math.abs(min ?? 0), Math.abs(max ?? 0)) || 1; return [(min ?? 0) - room, (max ?? 0) + room]; };

  // An exponential mean of what came before, without the pull of its beginning; gaps stay gaps.
  function smoothed(ys, weight) {
    let sum = 0, known = 0;
    return ys.map((y) => {
      if (y == null) return y;
      sum = weight * sum + (1 - weight) * y;
      known = weight * known + (1 - weight);
      return sum / known;
    });
  }

  const SVG = "http://www.w3.org/2000/svg", FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
  function shape(tag, attributes, style, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
    if (style) made.setAttribute("style", Object.entries(style).map(([name, value]) => `${name}:${value}`).join(";"));
    made.append(...children);
    return made;
  }
  const round = (value) => Math.round(value * 100) / 100;

  /* scene: { title, xName, width, height, colour(slot), lines: [{label, slot, xs, ys, low, high, dash, width, points, ghost}],
     x: {min, max, log, tick, steps}, y: {min, max, kind, unit, tick}, healthy, stepped } */
  function toSvg(scene) {
    const { width, x, y, colour } = scene, left = 62, right = 14, top = scene.title ? 36 : 10, inner = width - left - right;
    const named = new Map(scene.lines.filter((line) => !line.ghost).map((line) => [line.family ?? line.label, { ...line, label: line.family ?? line.label }]));
    const legend = legendRows([...named.values()], inner);
    const bottom = top + scene.height, total = bottom + 44 + legend.length * 18;
    const fx = x.log ? Math.log10 : (v) => v;
    const fy = y.kind === "log" ? Math.log10 : y.kind === "symmetric" ? (v) => Math.asinh(v / y.unit) : (v) => v;
    const spanX = fx(x.max) - fx(x.min) || 1, spanY = fy(y.max) - fy(y.min) || 1;
    const atX = (v) => left + ((fx(v) - fx(x.min)) / spanX) * inner, atY = (v) => bottom - ((fy(v) - fy(y.min)) / spanY) * scene.height;
    const text = (words, attributes, style) => shape("text", attributes, { "font-family": FONT, "font-size": "12px", fill: colour("--quiet"), ...style }, words);
    const clip = "clip-" + Math.random().toString(36).slice(2);
    const svg = shape("svg", { xmlns: SVG, viewBox: `0 0 ${width} ${total}`, width, height: total, role: "img" });
    svg.append(shape("title", {}, null, scene.title || scene.xName));
    if (scene.background) svg.append(shape("rect", { width, height: total }, { fill: colour("--surface") }));
    if (scene.title) svg.append(text(scene.title, { x: 14, y: 22 }, { "font-size": "15px", "font-weight": 600, fill: colour("--ink") }));
    svg.append(shape("defs", {}, null, shape("clipPath", { id: clip }, null, shape("rect", { x: left, y: top, width: inner, height: scene.height }))));
    if (scene.healthy) {
      const [from, to] = scene.healthy.map((v) => Math.min(Math.max(atY(v), top), bottom));
      if (from - to > 0.5) svg.append(shape("rect", { x: left, y: round(to), width: inner, height: round(from - to) }, { fill: colour("--good"), "fill-opacity": 0.1 }));
    }
    const xs = x.log ? logSplits(x.min, x.max) : linearSplits(x.min, x.max, inner / 64, x.steps);
    const ys = y.kind === "log" ? logSplits(y.min, y.max) : y.kind === "symmetric" ? symmetricSplits(y.min, y.max, y.unit) : linearSplits(y.min, y.max, scene.height / 34);
    for (const v of ys) svg.append(shape("path", { d: `M${left} ${round(atY(v))}H${left + inner}` }, { stroke: colour("--grid") }), text(y.tick(v), { x: left - 7, y: round(atY(v)) + 4, "text-anchor": "end" }));
    for (const v of xs) svg.append(shape("path", { d: `M${round(atX(v))} ${top}V${bottom}` }, { stroke: colour("--grid") }), text(x.tick(v), { x: round(atX(v)), y: bottom + 16, "text-anchor": "middle" }));
    svg.append(text(scene.xName, { x: left + inner / 2, y: bottom + 34, "text-anchor": "middle" }));
    const body = shape("g", { "clip-path": `url(#${clip})` });
    for (const line of scene.lines) if (line.low) body.append(area(line, atX, atY, colour, scene.stepped));
    for (const line of scene.lines) body.append(...curve(line, atX, atY, colour, scene.stepped));
    svg.append(body);
    legend.forEach((row, i) => row.forEach(({ line, at }) => svg.append(
      shape("path", { d: `M${left + at} ${bottom + 50 + i * 18}h18` }, { stroke: colour(line.slot), "stroke-width": 3, "stroke-dasharray": line.dash ? line.dash.join(" ") : "none" }),
      text(line.label, { x: left + at + 23, y: bottom + 54 + i * 18 }, { fill: colour("--ink") }))));
    return svg;
  }
  function legendRows(lines, room) { // widths are estimates: no text can be measured before it is drawn
    const rows = [[]];
    let at = 0;
    for (const line of lines.slice(0, 24)) {
      const wide = 40 + line.label.length * 6.9;
      if (at && at + wide > room) { rows.push([]); at = 0; }
      rows[rows.length - 1].push({ line, at });
      at += wide;
    }
    return lines.length ? rows : [];
  }
  function path(xs, ys, atX, atY, stepped) {
    let d = "", pen = false;
    xs.forEach((x, i) => {
      if (ys[i] === undefined) return;
      if (ys[i] == null || !Number.isFinite(atY(ys[i]))) { pen = false; return; }
      const px = round(atX(x)), py = round(atY(ys[i]));
      d += !pen ? `M${px} ${py}` : stepped ? `H${px}V${py}` : `L${px} ${py}`;
      pen = true;
    });
    return d;
  }
  function curve(line, atX, atY, colour, stepped) {
    const style = { stroke: colour(line.slot), "stroke-width": line.width, "stroke-dasharray": line.dash ? line.dash.join(" ") : "none", fill: "none", "stroke-linejoin": "round", "stroke-opacity": line.ghost ? 0.3 : line.faint ? 0.8 : 1 };
    const drawn = [shape("path", { d: path(line.xs, line.ys, atX, atY, stepped) }, style)];
    if (line.points || line.ys.length === 1) line.xs.forEach((x, i) => { if (line.ys[i] != null) drawn.push(shape("circle", { cx: round(atX(x)), cy: round(atY(line.ys[i])), r: 2.6 }, { fill: colour("--surface"), stroke: colour(line.slot), "stroke-width": 1.4 })); });
    return drawn;
  }
  function area(line, atX, atY, colour, stepped) {
    const there = line.xs.map((x, i) => i).filter((i) => line.low[i] != null && line.high[i] != null);
    const up = path(there.map((i) => line.xs[i]), there.map((i) => line.high[i]), atX, atY, stepped);
    const back = [...there].reverse().map((i, n, all) => (stepped && n ? `V${round(atY(line.low[i]))}H${round(atX(line.xs[i]))}` : `L${round(atX(line.xs[i]))} ${round(atY(line.low[i]))}`)).join("");
    return shape("path", { d: up ? up + back + "Z" : "" }, { fill: colour(line.slot), "fill-opacity": 0.2, stroke: "none" });
  }
  return { linearSplits, linearRange, logSplits, symmetricSplits, logRange, symmetricRange, smoothed, toSvg };
})();
