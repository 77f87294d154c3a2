"use strict";
// Data that scripts beside the page add, and charts as SVG. Texts from files are set as text, never as HTML.
const report = {
  data: {},
  waiting: {},
  add(name, text) {
    this.data[name] = JSON.parse(text);
    this.waiting[name]?.forEach((done) => done(this.data[name]));
    delete this.waiting[name];
  },
  // A script is the only file that a page on disk may load.
  load(name) {
    if (name in this.data) return Promise.resolve(this.data[name]);
    return new Promise((resolve, reject) => {
      const first = !(name in this.waiting);
      (this.waiting[name] ||= []).push(resolve);
      if (!first) return;
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onerror = () => reject(new Error(`data/${name}.js is missing`));
      document.head.append(script);
    });
  },
};

const $ = (id) => document.getElementById(id);

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function shape(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Lines in a square from 0 to 1; series are {name, x, y, dashed}, with null where a value is not known.
function lineChart(host, series, axes, mark) {
  const left = 44, top = 10, width = 440, height = 280;
  const px = (x) => left + x * width, py = (y) => top + (1 - y) * height;
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${left + width + 12} ${top + height + 40}`, role: "img" });
  svg.append(shape("title", {}, `${axes.y} over ${axes.x}: ${series.map((one) => one.name).join(", ")}`));
  for (const tick of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    svg.append(shape("line", { class: "grid", x1: px(tick), x2: px(tick), y1: py(0), y2: py(1) }));
    svg.append(shape("line", { class: "grid", x1: px(0), x2: px(1), y1: py(tick), y2: py(tick) }));
    svg.append(shape("text", { x: px(tick), y: py(0) + 16, "text-anchor": "middle" }, String(tick)));
    svg.append(shape("text", { x: left - 6, y: py(tick) + 4, "text-anchor": "end" }, String(tick)));
  }
  svg.append(shape("text", { x: px(0.5), y: py(0) + 34, "text-anchor": "middle" }, axes.x));
  if (mark !== undefined) {
    svg.append(shape("line", { x1: px(mark), x2: px(mark), y1: py(0), y2: py(1), stroke: "var(--soft)", "stroke-dasharray": "4 4" }));
  }
  series.forEach((one, number) => {
    let path = "", pen = "M";
    one.x.forEach((x, index) => {
      const y = one.y[index];
      if (y === null || y === undefined) { if (!one.joined) pen = "M"; return; }
      path += `${pen}${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
      pen = "L";
    });
    const line = shape("path", { class: "line", d: path, stroke: `var(--c${number % 8})` });
    if (one.dashed) line.setAttribute("stroke-dasharray", "6 4");
    line.append(shape("title", {}, one.name));
    svg.append(line);
  });
  const legend = element("ul", { class: "legend" });
  series.forEach((one, number) => {
    legend.append(element("li", {}, element("i", { style: `background:var(--c${number % 8})` }), one.name));
  });
  host.replaceChildren(svg, legend);
}

// Counts as bars over the bounds from which they are counted.
function barChart(host, bounds, counts, unit) {
  const left = 54, top = 10, width = 430, height = 220, step = width / Math.max(counts.length, 1);
  const most = Math.max(...counts, 1);
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${left + width + 12} ${top + height + 28}`, role: "img" });
  svg.append(shape("title", {}, counts.map((count, n) => `from ${bounds[n]}: ${count}`).join(", ")));
  for (const tick of [0, 0.5, 1]) {
    const y = top + (1 - tick) * height;
    svg.append(shape("line", { class: "grid", x1: left, x2: left + width, y1: y, y2: y }));
    svg.append(shape("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, String(Math.round(tick * most))));
  }
  const every = Math.ceil(counts.length / 14);
  counts.forEach((count, n) => {
    const tall = (height * count) / most;
    const rect = shape("rect", { x: left + n * step + 1, y: top + height - tall, width: Math.max(step - 2, 1), height: tall, fill: "var(--c0)" });
    rect.append(shape("title", {}, `from ${bounds[n]}: ${count} ${unit}`));
    svg.append(rect);
    if (n % every === 0) svg.append(shape("text", { x: left + n * step, y: top + height + 18, "text-anchor": "middle" }, String(bounds[n])));
  });
  host.replaceChildren(svg);
}

// Counts of a grid's cells, the darker the more.
function heatMap(host, rows, unit) {
  const side = 300, cell = side / rows.length, most = Math.max(...rows.flat(), 1);
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${side} ${side}`, role: "img" });
  svg.append(shape("title", {}, `at most ${most} ${unit} in one place`));
  svg.append(shape("rect", { width: side, height: side, fill: "var(--panel)" }));
  rows.forEach((row, y) => row.forEach((count, x) => {
    const rect = shape("rect", { x: x * cell, y: y * cell, width: cell + 0.3, height: cell + 0.3, fill: "var(--c0)", "fill-opacity": (count / most).toFixed(3) });
    rect.append(shape("title", {}, `${count} ${unit}`));
    svg.append(rect);
  }));
  host.replaceChildren(svg);
}

// A table of counts as buttons; rows and columns are {title, key}, cells a function of two keys.
function matrixTable(host, rows, columns, cell, chosen) {
  const table = element("table");
  const head = element("tr", {}, element("td"));
  for (const column of columns) head.append(element("th", { scope: "col", title: column.title }, column.title));
  table.append(element("thead", {}, head));
  const body = element("tbody");
  for (const row of rows) {
    const line = element("tr", {}, element("th", { scope: "row", title: row.title }, row.title));
    for (const column of columns) {
      const { text, share, right, label } = cell(row.key, column.key);
      const button = element("button", { type: "button", style: `--v:${share};--shade:var(--${right ? "right" : "wrong"})`, "aria-label": label, onclick: () => chosen(row.key, column.key) }, text);
      button.disabled = text === "";
      line.append(element("td", {}, button));
    }
    body.append(line);
  }
  table.append(body);
  host.replaceChildren(table);
}

// A click on a heading sorts the table's rows by that column.
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("thead th").forEach((head, index) => {
    const title = head.textContent;
    if (!title) return;
    const button = element("button", { type: "button", title: "sort" }, title);
    let down = true;
    button.addEventListener("click", () => {
      const value = (row) => {
        const text = row.cells[index].textContent.trim();
        const number = parseFloat(text.replaceAll(",", ""));
        return Number.isNaN(number) ? text : number;
      };
      const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : typeof a === "number" ? 1 : typeof b === "number" ? -1 : a.localeCompare(b));
      const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? order(value(b), value(a)) : order(value(a), value(b))));
      down = !down;
      table.tBodies[0].append(...rows);
    });
    head.replaceChildren(button);
  });
}
