"use strict";
// The report's curves, confusion matrix and pictures. So many pictures are in each of its lists.
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
function allEvents() {
  everything ||= Promise.all([...Array(summary.eventParts).keys()].map((n) => report.load(`events-${n}`))).then((parts) => parts.flatMap(rows));
  return everything;
}

const kindOf = (event) => (event.type === 0 ? "right" : event.seen === NOTHING ? "missed" : "wrong");

const photo = (index) => picture({ width: images.width[index], height: images.height[index], file: images.file[index] });

function words(event) {
  const score = event.score.toFixed(2);
  if (event.type === 0) return `${className(event.seen)} ${score}`;
  if (event.seen === NOTHING) return className(event.truth);
  const seen = `${className(event.seen)} ${score}`;
  if (event.truth !== NOTHING) return `${className(event.truth)} found as ${seen}`;
  // The object of another class was found by another detection.
  return event.near !== NOTHING && event.near !== event.seen ? `${seen}, on ${className(event.near)}` : seen;
}

function eventCard(event, open) {
  const boxes = [event.object, event.box].filter(Boolean);
  const svg = shape("svg", { viewBox: around(boxes, 1.4) }, photo(event.image));
  if (event.object) svg.append(box("truth", event.object));
  if (event.box) svg.append(box(kindOf(event), event.box));
  return card(svg, [words(event), summary.types[event.type]], open);
}

// The viewer: an image with its boxes, and switches for what is drawn.
const drawn = { truth: true, right: true, wrong: true, missed: true, masks: true };
let current = null;
for (const name of Object.keys(drawn).filter((layer) => layer !== "masks" || summary.shapeParts)) {
  const box = element("input", { type: "checkbox", checked: "", onchange: () => { drawn[name] = box.checked; draw(); } });
  viewer.querySelector(".toggles").append(element("label", {}, box, ` ${name}`));
}

async function look(index, event, list, place) {
  current = { index, event, list, place, events: (await allEvents()).filter((one) => one.image === index) };
  current.shapes = summary.shapeParts ? await report.load(`shapes-${Math.floor(index / summary.imagesAPart)}`) : {};
  draw();
}

function draw() {
  const { index, event, events, shapes } = current;
  const svg = imageDrawing(index, events, { event, shapes, layers: drawn });
  const said = event ? `${words(event)} (${summary.types[event.type]}) in ` : "";
  openViewer(svg, `${said}${images.name[index]}, ${images.width[index]} × ${images.height[index]}: ${counts(index)}`);
}

const counts = (index) => `${images.right[index]} right, ${images.wrong[index]} wrong, ${images.missed[index]} missed`;

// An image with its events; texts are placed by `placeLabels` once the drawing has its size on the page.
function imageDrawing(index, events, { event = null, shapes = {}, layers = { truth: true, right: true, wrong: true, missed: true } } = {}) {
  const svg = shape("svg", { viewBox: `0 0 ${images.width[index]} ${images.height[index]}` }, photo(index));
  const labels = [];
  for (const one of events) {
    const kind = kindOf(one);
    if (layers.truth && one.object && one.truth !== NOTHING) {
      outline(svg, shapes[one.id]?.truth, "truth");
      svg.append(box("truth", one.object));
    }
    if (!layers[kind]) continue;
    outline(svg, shapes[one.id]?.found, kind);
    const at = one.box || one.object;
    const rect = box(kind, at);
    if (event && one.id === event.id) rect.style.strokeWidth = "4";
    rect.append(shape("title", {}, `${words(one)}, ${summary.types[one.type]}`));
    svg.append(rect);
    labels.push({ text: kind === "missed" ? `${words(one)} missed` : words(one), box: at, kind, first: event && one.id === event.id, score: one.score });
  }
  // The one that was clicked, then what is wrong, then the most confident: those are placed first.
  const rank = { missed: 1, wrong: 2, right: 0 };
  svg.labels = labels.sort((a, b) => (b.first ? 1 : 0) - (a.first ? 1 : 0) || rank[b.kind] - rank[a.kind] || b.score - a.score);
  return svg;
}

// The same for a card: without texts, which would be too small.
function fillCard(svg, events) {
  for (const one of events) svg.append(box(kindOf(one), one.box || one.object));
}

// A mask as a path, and keypoints as dots.
function outline(svg, given, kind) {
  if (!given || !drawn.masks) return;
  if (given.path) svg.append(shape("path", { class: `shape ${kind}`, d: given.path, "fill-rule": "evenodd" }));
  for (const [x, y] of given.points || []) {
    svg.append(shape("circle", { class: kind, cx: x, cy: y, r: Math.max(images.width[current.index] / 150, 2) }));
  }
}

onArrows((by) => {
  const next = current.list[current.place + by];
  if (next === undefined) return false;
  if (typeof next === "number") look(next, null, current.list, current.place + by);
  else look(next.image, next, current.list, current.place + by);
  return true;
});

// Events, with filters.
const events = pager({ host: "gallery", page: "page", before: "before", after: "after" }, MOST, (event, place) => eventCard(event, () => look(event.image, event, events.items, place)));
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
  const all = await allEvents();
  const chosen = all.filter((event) =>
    (value("type") === "" ? event.type !== 0 || value("truth") !== "" || value("seen") !== "" : event.type === Number(value("type"))) &&
    (value("truth") === "" || event.truth === Number(value("truth"))) &&
    (value("seen") === "" || event.seen === Number(value("seen"))) &&
    (value("size") === "" || sizeOf(event) === value("size")) &&
    (event.seen === NOTHING || (event.score >= Number(value("low")) && event.score <= Number(value("high")))));
  events.set(chosen);
  $("shown").textContent = `${chosen.length} of ${all.length} events, the worst first`;
}
form.addEventListener("change", filter);
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", (event) => event.preventDefault());
const first = rows(report.data.first).filter((event) => event.type !== 0);
events.set(first);
$("shown").textContent = `the ${first.length} worst errors; filters show the others`;

const labels = pager({ host: "disagreements", page: "disagreements-page", before: "disagreements-before", after: "disagreements-after" }, MOST, (event, place) => eventCard(event, () => look(event.image, event, labels.items, place)));
labels.set(rows(report.data.disagreements));

async function show(given) {
  form.reset();
  for (const [name, value] of Object.entries(given)) form.elements[name].value = value;
  await filter();
  form.scrollIntoView();
}

// Events of each image, for the walls of images; they are read when a wall is scrolled to.
let byImage = null;
function eventsByImage() {
  byImage ||= allEvents().then((all) => {
    const groups = new Map(images.name.map((_, index) => [index, []]));
    for (const event of all) groups.get(event.image).push(event);
    return groups;
  });
  return byImage;
}

function imageCard(index, texts, open) {
  const svg = shape("svg", { viewBox: `0 0 ${images.width[index]} ${images.height[index]}` }, photo(index));
  whenSeen(svg, async () => fillCard(svg, (await eventsByImage()).get(index)));
  return card(svg, texts, open);
}

// The verdict's picture, and the ways from numbers to pictures.
if (summary.verdict.image !== null) {
  const index = summary.verdict.image, host = $("picture");
  const svg = imageDrawing(index, rows(summary.verdict.events));
  host.querySelector("div").replaceChildren(element("button", { type: "button", class: "plain", "aria-label": `Enlarge ${images.name[index]}`, onclick: () => look(index, null, [index], 0) }, svg));
  host.querySelector("figcaption").append(`${images.name[index]}: `, ...["right", "wrong", "missed"].flatMap((kind) => [element("i", { class: `swatch ${kind}` }), ` ${images[kind][index]} ${kind} `]), element("i", { class: "swatch truth" }), " label");
  placeLabels(svg);
}
$("see-them")?.addEventListener("click", (event) => { event.preventDefault(); show({ truth: "", seen: "", ...summary.verdict.filters }); });
for (const button of document.querySelectorAll("button[data-type]")) button.addEventListener("click", () => show({ type: button.dataset.type, truth: "", seen: "" }));

// Images, worst or best first.
const pictures = pager({ host: "images", page: "images-page", before: "images-before", after: "images-after" }, MOST, (index, place) => imageCard(index, [images.name[index], counts(index)], () => look(index, null, pictures.items, place)));
function orderImages() {
  const faults = (n) => images.wrong[n] + images.missed[n];
  const worst = $("image-order").value === "worst";
  const order = images.name.map((_, n) => n).sort((a, b) => (worst ? faults(b) - faults(a) : faults(a) - faults(b) || images.right[b] - images.right[a]));
  pictures.set(order);
}
$("image-order").addEventListener("change", orderImages);
orderImages();

// Images that are nearly the same, group by group.
if (summary.duplicates.length) {
  const same = pager({ host: "duplicates", page: "duplicates-page", before: "duplicates-before", after: "duplicates-after" }, 10, ([group, index], place) => {
    return imageCard(index, [`group ${group + 1}`, images.name[index]], () => look(index, null, same.items.map((one) => one[1]), place));
  });
  same.set(summary.duplicates.flatMap((group, n) => group.map((index) => [n, index])));
}

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
lineChart($("scores"), ["precision", "recall", "f1"].map((name) => ({ name: name === "f1" ? "F1" : name, x: summary.grid, y: summary.judged[name] })), { x: "confidence threshold", y: "share" }, summary.threshold);

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
