"use strict";
// Charts and pictures of the page on data.
const { summary, images, odd } = report.data;
const photo = (index) => picture({ width: images.width[index], height: images.height[index], file: images.file[index] });
const className = (place) => summary.classes[place];

// Shapes and places, of all classes or of one.
function drawShapes(given) {
  barChart($("sides"), summary.sides, given.sides, "objects");
  barChart($("aspects"), summary.aspects, given.aspects, "objects");
  heatMap($("places"), given.places, "objects");
}
const classPart = async (place) => (await report.load(`classes-${Math.floor(place / summary.classesAPart)}`))[place % summary.classesAPart];
const known = summary.classes.slice(0, -1);
const classOptions = () => [element("option", { value: "" }, "all"), ...known.map((name, n) => element("option", { value: n }, name))];
$("shape-class").append(...classOptions());
$("shape-class").addEventListener("change", async () => {
  const chosen = $("shape-class").value;
  drawShapes(chosen === "" ? summary.all : await classPart(Number(chosen)));
});
drawShapes(summary.all);
barChart($("per-image"), summary.perImage.map((_, n) => n), summary.perImage, "images");

// The viewer: an image with its objects.
const drawn = { boxes: true };
let current = null;
const toggle = element("input", { type: "checkbox", checked: "", onchange: () => { drawn.boxes = toggle.checked; draw(); } });
viewer.querySelector(".toggles").append(element("label", {}, toggle, " boxes"));

async function objectsOf(index) {
  const part = await report.load(`objects-${Math.floor(index / summary.imagesAPart)}`);
  return part[index % summary.imagesAPart];
}

async function look(index, list, place) {
  current = { index, list, place, objects: await objectsOf(index) };
  draw();
}

function draw() {
  const { index, objects } = current, width = images.width[index], height = images.height[index];
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}` }, photo(index));
  const shown = drawn.boxes ? objects : [];
  for (const [place, ...at] of shown) {
    const rect = box("truth solid", at);
    rect.append(shape("title", {}, `${className(place)}, ${at[2]} × ${at[3]}`));
    svg.append(rect);
  }
  svg.labels = shown.map(([place, ...at]) => ({ text: className(place), box: at, kind: "truth" }));
  openViewer(svg, `${images.name[index]}, ${width} × ${height}: ${objects.length} objects`);
}

onArrows((by) => {
  const next = current.list[current.place + by];
  if (next === undefined) return false;
  look(next, current.list, current.place + by);
  return true;
});

// A whole image; its objects are read when it is scrolled to.
function whole(index) {
  const svg = shape("svg", { viewBox: `0 0 ${images.width[index]} ${images.height[index]}` }, photo(index));
  whenSeen(svg, async () => { for (const [, ...at] of await objectsOf(index)) svg.append(box("truth solid", at)); });
  return svg;
}

if (odd.length) {
  const strange = pager({ host: "odd", page: "odd-page", before: "odd-before", after: "odd-after" }, 30, (one, place) => {
    const svg = shape("svg", { viewBox: around([one.box], 2.5) }, photo(one.image), box("wrong", one.box));
    return card(svg, [className(one.class), one.reason], () => look(one.image, strange.items.map((other) => other.image), place));
  });
  const reasons = [...new Set(odd.map((one) => one.reason))];
  $("reason").append(element("option", { value: "" }, "any"), ...reasons.map((name) => element("option", {}, name)));
  const filterReasons = () => strange.set(odd.filter((one) => [one.reason, ""].includes($("reason").value)));
  $("reason").addEventListener("change", filterReasons);
  filterReasons();
}

if (summary.groups.length) {
  const same = pager({ host: "duplicates", page: "duplicates-page", before: "duplicates-before", after: "duplicates-after" }, 30, ([group, index], place) => card(whole(index), [`group ${group + 1}`, images.name[index]], () => look(index, same.items.map((one) => one[1]), place)));
  same.set(summary.groups.flatMap((group, n) => group.map((index) => [n, index])));
}

const pictures = pager({ host: "images", page: "images-page", before: "images-before", after: "images-after" }, 30, (index, place) => card(whole(index), [images.name[index], `${images.objects[index]} objects`], () => look(index, pictures.items, place)));
const form = $("filters");
form.elements.class.append(...classOptions());
async function filter() {
  const chosen = form.elements.class.value, order = form.elements.order.value;
  const found = chosen === "" ? images.name.map((_, n) => n) : [...(await classPart(Number(chosen))).images];
  const more = (a, b) => images.objects[b] - images.objects[a];
  if (order !== "data") found.sort(order === "most" ? more : (a, b) => more(b, a));
  pictures.set(found);
  $("shown").textContent = `${found.length} of ${images.name.length} images`;
}
form.addEventListener("change", filter);
form.addEventListener("submit", (event) => event.preventDefault());
filter();
