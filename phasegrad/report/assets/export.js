// Downloads and copies, all made here: charts as PNG, SVG and CSV, tables as Markdown, LaTeX and CSV.
"use strict";
const exporting = (() => {
  function save(name, content, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }
  const fileName = (title, ending) => (title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80) || "chart") + ending;
  const svgText = (svg) => '<?xml version="1.0" encoding="UTF-8"?>\n' + new XMLSerializer().serializeToString(svg) + "\n";
  function png(title, svg, scale = 2) {
    const picture = new Image(), wide = svg.viewBox.baseVal.width, high = svg.viewBox.baseVal.height;
    return new Promise((done, fail) => {
      picture.onerror = () => fail(new Error("The picture could not be drawn."));
      picture.onload = () => {
        const canvas = document.createElement("canvas");
        canvas.width = wide * scale; canvas.height = high * scale;
        canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
        canvas.toBlob((blob) => { save(fileName(title, ".png"), blob); done(); }, "image/png");
      };
      picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svgText(svg));
    });
  }
  // A cell that a spreadsheet would take for a formula is made text.
  const csvCell = (value) => {
    const words = value == null ? "" : String(value), safe = typeof value !== "number" && /^[=+@\t\r-]/.test(words) ? "'" + words : words;
    return /[",\n\r]/.test(safe) ? '"' + safe.replaceAll('"', '""') + '"' : safe;
  };
  const csv = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\r\n") + "\r\n";
  function curveRows(xName, lines) { // one row a place on the axis, one column a curve
    const columns = lines.flatMap((line) => [[line.label, line.ys], ...(line.low ? [[line.label + ", 95 % low", line.low], [line.label + ", 95 % high", line.high]] : [])].map(([label, ys]) => [label, new Map(line.xs.map((x, i) => [x, ys[i]]))]));
    const places = [...new Set(lines.flatMap((line) => line.xs))].sort((a, b) => a - b);
    return [[xName, ...columns.map(([label]) => label)], ...places.map((x) => [x, ...columns.map(([, ys]) => ys.get(x) ?? "")])];
  }

  function tableRows(table) {
    const cells = (row) => [...row.cells].map((cell) => ({ text: cell.innerText.trim().replace(/\s+/g, " "), bold: cell.querySelector("strong") !== null, number: cell.classList.contains("number") }));
    return { caption: table.caption?.innerText ?? "", head: cells(table.tHead.rows[0]), body: [...table.tBodies[0].rows].map(cells) };
  }
  function markdown(table) {
    const { caption, head, body } = tableRows(table);
    const line = (row) => "| " + row.map((cell) => { const words = cell.text.replaceAll("\\", "\\\\").replaceAll("|", "\\|").replaceAll("<", "&lt;"); return cell.bold ? `**${words}**` : words; }).join(" | ") + " |";
    return [`**${caption.replaceAll("*", "\\*")}**`, "", line(head), "|" + head.map((cell) => (cell.number ? "---:" : "---")).join("|") + "|", ...body.map(line), ""].join("\n");
  }
  const LATEX = { "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", $: "\\$", "&": "\\&", "#": "\\#", _: "\\_", "%": "\\%", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "−": "$-$", "–": "--", "…": "\\dots{}", "<": "$<$", ">": "$>$" };
  const latexText = (words) => words.replace(/[\\{}$&#_%~^−–…<>]/g, (sign) => LATEX[sign]);
  function latex(table) { // for the package booktabs
    const { caption, head, body } = tableRows(table);
    const line = (row) => "  " + row.map((cell) => (cell.bold ? `\\textbf{${latexText(cell.text)}}` : latexText(cell.text))).join(" & ") + " \\\\";
    return ["\\begin{table}", "\\centering", `\\caption{${latexText(caption)}}`, `\\begin{tabular}{${head.map((cell) => (cell.number ? "r" : "l")).join("")}}`,
      "\\toprule", line(head), "\\midrule", ...body.map(line), "\\bottomrule", "\\end{tabular}", "\\end{table}", ""].join("\n");
  }
  const tableCsv = (table) => { const { head, body } = tableRows(table); return csv([head, ...body].map((row) => row.map((cell) => cell.text))); };
  async function copy(words) {
    try { await navigator.clipboard.writeText(words); return; } catch { /* older browsers, and pages opened from a disk */ }
    const area = document.createElement("textarea");
    area.value = words;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("The browser does not let this page copy.");
  }
  return { save, fileName, svgText, png, csv, curveRows, markdown, latex, tableCsv, copy };
})();
