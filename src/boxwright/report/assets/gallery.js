"use strict";
// The report's curves, confusion matrix and pictures. At most so many pictures are drawn at once.
const MOST = 30;
const { summary, images } = report.data;
const NOTHING = -1;
const className = (key) => (key === NOTHING ? "nothing" : summary.classes[key]);

// Events as objects, from columns.
function rows(columns) {
  return columns.id.map((id, n) => ({
    id,
    image: columns.image[n],
    type: columns.type[n],
    truth: columns.truth[n],
    seen: columns.seen[n],
    near: columns.near[n],
    score: columns.score[n],
    object: columns.near[n] === NOTHING ? null : columns.object.slice(4 * n, 4 * n + 4),
    box: columns.seen[n] === NOTHING ? null : columns.box.slice(4 * n, 4 * n + 4),
  }));
}

let everything = null;
async function allEvents() {
  if (everything) return everything;
  const parts = await Promise.all([...Array(summary.eventParts).keys()].map((n) => report.load(`events-${n}`)));
  everything = parts.flatMap(rows);
  return everything;
}

const kindOf = (event) => (event.type === 0 ? "right" : event.seen === NOTHING ? "missed" : "wrong");

function box(kind, at) {
  return shape("rect", { class: `box ${kind}`, x: at[0], y: at[1], width: at[2], height: at[3] });
}

function picture(index) {
  const size = { width: images.width[index], height: images.height[index] };
  if (!images.file[index]) return shape("rect", { ...size, fill: "var(--line)" });
  return shape("image", { ...size, href: images.file[index], preserveAspectRatio: "none" });
}

// The part of an image around an event, square.
function around(event) {
  const all = [event.object, event.box].filter(Boolean);
  const x0 = Math.min(...all.map((one) => one[0])), y0 = Math.min(...all.map((one) => one[1]));
  const x1 = Math.max(...all.map((one) => one[0] + one[2])), y1 = Math.max(...all.map((one) => one[1] + one[3]));
  const side = Math.max(1.4 * Math.max(x1 - x0, y1 - y0), 24);
  return [(x0 + x1 - side) / 2, (y0 + y1 - side) / 2, side, side];
}

function words(event) {
  if (event.type === 0) return `${className(event.seen)} ${event.score}`;
  if (event.seen === NOTHING) return `${className(event.truth)}: missed`;
  const about = event.truth !== NOTHING ? `${className(event.truth)} found as ` : "";
  return `${about}${className(event.seen)} ${event.score}`;
}

function card(event, open) {
  const svg = shape("svg", { viewBox: around(event).join(" ") }, picture(event.image));
  if (event.object) svg.append(box("truth", event.object));
  if (event.box) svg.append(box(kindOf(event), event.box));
  const button = element("button", { type: "button", class: "card", onclick: open }, svg);
  button.append(element("span", {}, words(event)), element("span", {}, summary.types[event.type]));
  return button;
}

// A list of cards in pages; `draw` makes one item's card.
function pager(names, draw) {
  let items = [], page = 0;
  const pages = () => Math.max(Math.ceil(items.length / MOST), 1);
  function show() {
    const start = page * MOST;
    $(names.host).replaceChildren(...items.slice(start, start + MOST).map((item, n) => draw(item, start + n)));
    $(names.page).textContent = `page ${page + 1} of ${pages()}`;
    $(names.before).disabled = page === 0;
    $(names.after).disabled = page + 1 >= pages();
  }
  const turn = (by) => { page = Math.min(Math.max(page + by, 0), pages() - 1); show(); };
  $(names.before).addEventListener("click", () => turn(-1));
  $(names.after).addEventListener("click", () => turn(1));
  return { set(next) { items = next; page = 0; show(); }, get items() { return items; } };
}

// The viewer: an image with its boxes, and switches for what is drawn.
const viewer = $("viewer");
const drawn = { truth: true, right: true, wrong: true, missed: true, masks: true };
let current = null;
for (const name of Object.keys(drawn)) {
  const box = element("input", { type: "checkbox", checked: "", onchange: () => { drawn[name] = box.checked; draw(); } });
  viewer.querySelector(".toggles").append(element("label", {}, box, ` ${name}`));
}

async function look(index, event, list, place) {
  current = { index, event, list, place, events: (await allEvents()).filter((one) => one.image === index) };
  current.shapes = summary.shapeParts ? await report.load(`shapes-${Math.floor(index / summary.imagesAPart)}`) : {};
  draw();
  if (!viewer.open) viewer.showModal();
}

function draw() {
  const { index, event, events, shapes } = current;
  const width = images.width[index], height = images.height[index];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}` }, picture(index));
  svg.style.setProperty("--letters", `${Math.max(width, height) / 55}px`);
  for (const one of events) {
    const kind = kindOf(one);
    if (drawn.truth && one.object && one.truth !== NOTHING) {
      outline(svg, shapes[one.id]?.truth, "truth");
      svg.append(box("truth", one.object));
    }
    if (!drawn[kind]) continue;
    outline(svg, shapes[one.id]?.found, kind);
    const at = one.box || one.object;
    const rect = box(kind, at);
    if (event && one.id === event.id) rect.style.strokeWidth = "4";
    rect.append(shape("title", {}, `${words(one)}, ${summary.types[one.type]}`));
    svg.append(rect, shape("text", { x: at[0] + 2, y: Math.max(at[1] - 3, 12) }, words(one)));
  }
  viewer.querySelector(".stage").replaceChildren(svg);
  const counts = `${images.right[index]} right, ${images.wrong[index]} wrong, ${images.missed[index]} missed`;
  const said = event ? `${words(event)} (${summary.types[event.type]}) in ` : "";
  viewer.querySelector(".caption").textContent = `${said}${images.name[index]}, ${width} × ${height}: ${counts}`;
}

// A mask as a path, and keypoints as dots.
function outline(svg, given, kind) {
  if (!given || !drawn.masks) return;
  if (given.path) svg.append(shape("path", { class: `shape ${kind}`, d: given.path, "fill-rule": "evenodd" }));
  for (const [x, y] of given.points || []) {
    svg.append(shape("circle", { class: kind, cx: x, cy: y, r: Math.max(images.width[current.index] / 150, 2) }));
  }
}

viewer.addEventListener("keydown", (key) => {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[key.key];
  const next = by && current.list[current.place + by];
  if (!next) return;
  key.preventDefault();
  if (typeof next === "number") look(next, null, current.list, current.place + by);
  else look(next.image, next, current.list, current.place + by);
});

// Events, with filters.
const events = pager({ host: "gallery", page: "page", before: "before", after: "after" }, (event, place) => card(event, () => look(event.image, event, events.items, place)));
const form = $("filters");
function options(select, names) {
  select.append(element("option", { value: "" }, "any"));
  names.forEach(([value, text]) => select.append(element("option", { value }, text)));
}
options(form.elements.type, summary.types.map((name, n) => [n, name]));
const classes = [...summary.classes.map((name, n) => [n, name]), [NOTHING, "nothing"]];
options(form.elements.truth, classes);
options(form.elements.seen, classes);

function sizeOf(event) {
  const [, , width, height] = event.object || event.box;
  return width * height < 1024 ? "small" : width * height <= 9216 ? "medium" : "large";
}

async function filter() {
  const value = (name) => form.elements[name].value;
  const chosen = (await allEvents()).filter((event) =>
    (value("type") === "" ? event.type !== 0 || value("truth") !== "" || value("seen") !== "" : event.type === Number(value("type"))) &&
    (value("truth") === "" || event.truth === Number(value("truth"))) &&
    (value("seen") === "" || event.seen === Number(value("seen"))) &&
    (value("size") === "" || sizeOf(event) === value("size")) &&
    (event.seen === NOTHING || (event.score >= Number(value("low")) && event.score <= Number(value("high")))));
  events.set(chosen);
  $("shown").textContent = `${chosen.length} of ${everything.length} events, the worst first`;
}
form.addEventListener("change", filter);
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", (event) => event.preventDefault());
const first = rows(report.data.first).filter((event) => event.type !== 0);
events.set(first);
$("shown").textContent = `the ${first.length} worst events; filters show the others`;

const labels = pager({ host: "suspects", page: "suspects-page", before: "suspects-before", after: "suspects-after" }, (event, place) => card(event, () => look(event.image, event, labels.items, place)));
labels.set(rows(report.data.suspects));

async function show(given) {
  form.reset();
  for (const [name, value] of Object.entries(given)) form.elements[name].value = value;
  await filter();
  $("look").scrollIntoView();
}

// Images, worst or best first.
const pictures = pager({ host: "images", page: "images-page", before: "images-before", after: "images-after" }, (index, place) => {
  const svg = shape("svg", { viewBox: `0 0 ${images.width[index]} ${images.height[index]}` }, picture(index));
  const button = element("button", { type: "button", class: "card", onclick: () => look(index, null, pictures.items, place) }, svg);
  button.append(element("span", {}, images.name[index]), element("span", {}, `${images.right[index]} right, ${images.wrong[index]} wrong, ${images.missed[index]} missed`));
  return button;
});
function orderImages() {
  const faults = (n) => images.wrong[n] + images.missed[n];
  const worst = $("image-order").value === "worst";
  const order = images.name.map((_, n) => n).sort((a, b) => (worst ? faults(b) - faults(a) : faults(a) - faults(b) || images.right[b] - images.right[a]));
  pictures.set(order);
}
$("image-order").addEventListener("change", orderImages);
orderImages();

// Curves.
const recalls = [...Array(101).keys()].map((n) => n / 100);
const shownOverlaps = [0, 2, 4, 5, 6, 8, 9];
function precisionCurves(curves) {
  const series = shownOverlaps.map((n) => ({ name: `IoU ${summary.overlaps[n]}`, x: recalls, y: curves?.[n] || [] }));
  lineChart($("pr"), series, { x: "recall", y: "precision" });
}
$("curve-class").append(element("option", { value: "" }, "mean of all"), ...summary.classes.map((name, n) => element("option", { value: n }, name)));
$("curve-class").addEventListener("change", async () => {
  const chosen = $("curve-class").value;
  if (chosen === "") return precisionCurves(summary.mean);
  const part = await report.load(`curves-${Math.floor(chosen / summary.classesAPart)}`);
  return precisionCurves(part[chosen % summary.classesAPart]);
});
precisionCurves(summary.mean);
lineChart($("scores"), ["precision", "recall", "f1"].map((name) => ({ name: name === "f1" ? "F1" : name, x: summary.grid, y: summary.judged[name] })), { x: "score", y: "share" }, summary.threshold);

const names = { all: "all images", before: "half, as the scores are", after: "half, calibrated" };
const bins = Object.entries(summary.reliability).map(([name, { x, y }]) => ({ name: names[name], joined: true, x: x.map((one) => one ?? 0), y: y.map((one, n) => (x[n] === null ? null : one)) }));
lineChart($("reliability"), [{ name: "perfect", x: [0, 1], y: [0, 1], dashed: true }, ...bins], { x: "score", y: "share that is right" });

// Confusion: of many classes only those that are confused most.
const MOST_CLASSES = 30;
const cells = new Map(summary.confusion.map(([row, column, count]) => [`${row} ${column}`, count]));
const count = summary.classes.length;
function confusedMost() {
  const wrong = new Array(count + 1).fill(0);
  for (const [row, column, value] of summary.confusion) if (row !== column) { wrong[row] += value; wrong[column] += value; }
  const order = [...Array(count).keys()].sort((a, b) => wrong[b] - wrong[a]);
  return order.slice(0, MOST_CLASSES).sort((a, b) => a - b);
}
function drawMatrix() {
  const keys = [...(count > MOST_CLASSES ? confusedMost() : Array(count).keys()), count];
  const titled = keys.map((key) => ({ key, title: key === count ? "nothing" : summary.classes[key] }));
  const totals = new Array(count + 1).fill(0);
  for (const [row, , value] of summary.confusion) totals[row] += value;
  matrixTable($("matrix"), titled, titled, (row, column) => {
    const value = cells.get(`${row} ${column}`) || 0, share = value / (totals[row] || 1);
    const label = `${value} of ${titled.find((one) => one.key === row).title} found as ${titled.find((one) => one.key === column).title}`;
    const text = value === 0 ? "" : $("normalized").checked ? share.toFixed(2) : String(value);
    return { text, share, right: row === column, label };
  }, (row, column) => show({ truth: row === count ? NOTHING : row, seen: column === count ? NOTHING : column, type: "" }));
  if (count > MOST_CLASSES) $("matrix").append(element("p", { class: "note" }, `The ${MOST_CLASSES} classes that are confused most, of ${count}.`));
}
$("normalized").addEventListener("change", drawMatrix);
drawMatrix();
