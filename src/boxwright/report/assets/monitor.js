"use strict";
// A run's page: asks for what is new every two seconds while it is looked at, and draws it.
const EVERY_MS = 2000, MOST_POINTS = 400;
const AP = ["DetectionBoxes_Precision/mAP", "DetectionBoxes_Precision/mAP@.50IOU", "DetectionBoxes_Precision/mAP@.75IOU"];
const NOT_METRICS = ["step", "evaluation", "learning_rate"];
let key = "", log = { file: "", stop: 0 }, rows = [], names = {}, shownPictures = "";

async function ask(address) {
  const answer = await fetch(address, { headers: key ? { Authorization: `Bearer ${key}` } : {} });
  if (answer.status === 401) throw Object.assign(new Error("the key is needed"), { needsKey: true });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || `the server answered ${answer.status}`);
  return answer;
}

// The shortest text that tells a number from those near it.
function brief(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(3);
}

function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return whole < 172800 ? `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min` : `${Math.floor(whole / 86400)} days ${Math.floor((whole % 86400) / 3600)} h`;
}

// Round numbers between two bounds, about as many as asked for.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const found = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step * 1e-9; tick += step) found.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return found;
}

// Every so many points: more than a line has pixels are not seen.
const thinned = (points) => points.filter((_, n) => n % Math.ceil(points.length / MOST_POINTS) === 0 || n === points.length - 1);

// Lines over steps; series are {name, points: [[step, value], …]}. A pointer over the chart reads its values.
function stepChart(host, series, { logarithmic = false, least = null } = {}) {
  const usable = (value) => Number.isFinite(value) && (!logarithmic || value > 0);
  const drawn = series.map((one) => ({ ...one, points: thinned(one.points.filter(([, value]) => usable(value))) })).filter((one) => one.points.length);
  if (!drawn.length) return host.replaceChildren(element("p", { class: "note" }, "Nothing yet."));
  const scale = logarithmic ? Math.log10 : (value) => value;
  const values = drawn.flatMap((one) => one.points.map(([, value]) => scale(value))), steps = drawn.flatMap((one) => one.points.map(([step]) => step));
  let low = Math.min(...values), high = Math.max(...values);
  if (!logarithmic) { low = Math.min(least ?? low, low); high += 0.05 * (high - low); }
  if (high - low < 1e-12) { high += Math.abs(high) * 0.1 || 1; }
  let first = Math.min(...steps), last = Math.max(...steps);
  if (first === last) { first -= 1; last += 1; }
  const left = 52, top = 8, width = 428, height = 230;
  const px = (step) => left + ((step - first) / (last - first)) * width, py = (value) => top + (1 - (scale(value) - low) / (high - low)) * height;
  const svg = shape("svg", { class: "chart", viewBox: `0 0 ${left + width + 16} ${top + height + 36}`, role: "img" });
  svg.append(shape("title", {}, `${drawn.map((one) => one.name).join(", ")} over steps`));
  for (const tick of ticks(low, high, 5)) {
    const value = logarithmic ? 10 ** tick : tick, y = py(value);
    svg.append(shape("line", { class: "grid", x1: left, x2: left + width, y1: y, y2: y }), shape("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, String(Number(value.toPrecision(3)))));
  }
  for (const tick of ticks(first, last, 5).filter(Number.isInteger)) {
    svg.append(shape("line", { class: "grid", x1: px(tick), x2: px(tick), y1: top, y2: top + height }), shape("text", { x: px(tick), y: top + height + 16, "text-anchor": "middle" }, tick.toLocaleString("en")));
  }
  svg.append(shape("text", { x: left + width / 2, y: top + height + 33, "text-anchor": "middle" }, "step"));
  drawn.forEach((one, number) => {
    const color = `var(--c${number % 8})`;
    svg.append(shape("path", { class: "line", d: one.points.map(([step, value], n) => `${n ? "L" : "M"}${px(step).toFixed(1)} ${py(value).toFixed(1)}`).join(""), stroke: color }));
    // A single evaluation would be an invisible line.
    if (one.points.length < 30) for (const [step, value] of one.points) svg.append(shape("circle", { cx: px(step), cy: py(value), r: 3, fill: color }));
  });
  const cursor = shape("line", { class: "cursor", y1: top, y2: top + height, visibility: "hidden" });
  svg.append(cursor);
  const legend = element("ul", { class: "legend" }, ...drawn.map((one, number) => element("li", {}, element("i", { class: `key${number % 8}` }), `${one.name} ${brief(one.points.at(-1)[1])}`)));
  const readout = element("p", { class: "readout" });
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const wanted = first + ((at.x - left) / width) * (last - first);
    const near = (points) => points.reduce((best, point) => (Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best));
    const step = near(drawn.map((one) => near(one.points)))[0];
    cursor.setAttribute("x1", px(step)); cursor.setAttribute("x2", px(step)); cursor.setAttribute("visibility", "visible");
    readout.textContent = `step ${step.toLocaleString("en")}: ${drawn.map((one) => `${one.name} ${brief(near(one.points)[1])}`).join(", ")}`;
  });
  svg.addEventListener("pointerleave", () => { cursor.setAttribute("visibility", "hidden"); readout.textContent = ""; });
  host.replaceChildren(svg, legend, readout);
}

const training = () => rows.filter((row) => !("evaluation" in row));
function evaluations() {
  const all = rows.filter((row) => "evaluation" in row);
  // A run may evaluate several readers: the first is the one that it chooses by.
  return all.filter((row) => row.evaluation === all[0].evaluation);
}
const curve = (of, name, factor = 1) => of.filter((row) => typeof row[name] === "number").map((row) => [row.step, row[name] * factor]);

function drawCurves(batch) {
  const steps = training(), tested = evaluations();
  const terms = [...new Set(steps.flatMap((row) => Object.keys(row)))].filter((name) => name.startsWith("Loss/")).sort((a, b) => (b === "Loss/total_loss") - (a === "Loss/total_loss"));
  const term = (name) => name.replace(/^Loss\//, "").replace(/_loss$/, "").replaceAll("_", " ");
  stepChart($("losses"), terms.map((name) => ({ name: term(name), points: curve(steps, name) })), { logarithmic: $("logarithmic").checked });
  const known = AP.filter((name) => tested.some((row) => row[name] >= 0));
  const others = Object.keys(tested.at(-1) || {}).filter((name) => !NOT_METRICS.includes(name)).slice(0, 1);
  stepChart($("evaluations"), (known.length ? known : others).map((name) => ({ name: names[name] || name, points: curve(tested, name).filter(([, value]) => value >= 0) })), { least: 0 });
  stepChart($("rates"), [{ name: "learning rate", points: curve(steps, "learning_rate") }], { least: 0 });
  $("speeds-title").textContent = batch ? "Images per second" : "Steps per second";
  stepChart($("speeds"), [{ name: batch ? "images/s" : "steps/s", points: curve(steps, "steps_per_sec", batch || 1) }], { least: 0 });
}

const STATES = {
  training: "training",
  ended: "ended",
  killed: "killed: the same command resumes it",
  elsewhere: "started on another machine, where it may still be training",
};

function drawNumbers({ run, state, steps, batch_size: batch, age }) {
  document.title = `${run} – Boxwright`;
  $("run").textContent = run;
  $("state").textContent = state === "ended" && !rows.length ? "nothing logged yet" : STATES[state];
  $("light").className = state;
  $("news").textContent = age === null ? "" : `last logged ${duration(age)} ago`;
  const newest = training().at(-1), tested = evaluations(), step = rows.length ? Math.max(...rows.slice(-50).map((row) => row.step)) : 0;
  const whole = steps > 0 && steps < 2 ** 31;
  $("step").textContent = whole ? `${step.toLocaleString("en")} of ${steps.toLocaleString("en")}` : step.toLocaleString("en");
  $("progress").hidden = !whole;
  $("progress").value = whole ? Math.min(step / steps, 1) : 0;
  const recent = training().slice(-10).map((row) => row.steps_per_sec).filter((value) => value > 0);
  const speed = recent.length ? recent.length / recent.reduce((sum, value) => sum + 1 / value, 0) : 0;
  $("left").textContent = state !== "ended" && whole && speed && step < steps ? `about ${duration((steps - step) / speed)}` : "–";
  $("loss").textContent = newest ? brief(newest["Loss/total_loss"]) : "–";
  $("speed").textContent = speed ? (batch ? `${(speed * batch).toFixed(1)} images/s` : `${brief(speed)} steps/s`) : "–";
  const name = AP.find((ap) => tested.some((row) => row[ap] >= 0));
  $("best-name").textContent = "best AP";
  if (name) {
    const best = tested.reduce((a, b) => ((b[name] ?? -1) > (a[name] ?? -1) ? b : a));
    $("best").textContent = `${brief(best[name])} at step ${best.step.toLocaleString("en")}`;
  } else $("best").textContent = "–";
}

function drawMetrics() {
  const newest = evaluations().at(-1);
  $("metrics").hidden = !newest;
  if (!newest) return;
  const known = Object.entries(newest).filter(([name, value]) => !NOT_METRICS.includes(name) && typeof value === "number");
  $("metrics").querySelector("h2").textContent = `Newest evaluation, of step ${newest.step.toLocaleString("en")}`;
  $("metrics").querySelector("tbody").replaceChildren(...known.map(([name, value]) => element("tr", {}, element("th", { scope: "row", title: name }, names[name] || name), element("td", { class: "n" }, value < 0 ? "nothing to measure" : value.toFixed(3)))));
}

// Pictures are fetched with the key, which an address in the page could not carry.
async function drawPictures(pictures) {
  const wanted = JSON.stringify(pictures);
  if (wanted === shownPictures) return;
  shownPictures = wanted;
  const blobs = await Promise.all(pictures.map(({ name, step }) => ask(`pictures/${name.split("/").map(encodeURIComponent).join("/")}?step=${step}`).then((answer) => answer.blob())));
  for (const image of $("pictures").querySelectorAll("img")) URL.revokeObjectURL(image.src);
  $("newest").hidden = !pictures.length;
  $("pictures").replaceChildren(...pictures.map(({ name, step }, n) => {
    const words = name.includes("train_input_images") ? `training input at step ${step}` : `detections and labels at step ${step}`;
    const source = URL.createObjectURL(blobs[n]);
    return element("button", { type: "button", onclick: () => enlarge(source, words) }, element("img", { src: source, alt: words }), element("span", {}, words));
  }));
}

function enlarge(source, words) {
  $("viewer").querySelector(".stage").replaceChildren(element("img", { src: source, alt: words }));
  $("viewer").querySelector(".caption").textContent = words;
  $("viewer").showModal();
}

function complain(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text;
}

let plan = 0;
async function refresh() {
  const answer = await (await ask(`run?file=${encodeURIComponent(log.file)}&start=${log.stop}`)).json();
  if (answer.again) rows = [];
  rows.push(...answer.rows);
  log = { file: answer.file, stop: answer.stop };
  Object.assign(names, answer.names);
  plan = answer.batch_size || 0;
  drawNumbers(answer);
  if (answer.again || answer.rows.length) { drawCurves(plan); drawMetrics(); }
  await drawPictures(answer.pictures);
}

async function follow() {
  try {
    if (!document.hidden) await refresh();
    complain("");
  } catch (error) {
    if (error.needsKey) { $("access").hidden = false; $("key").focus(); return; }
    shownPictures = "";
    complain(error instanceof TypeError ? "boxwright monitor has ended or cannot be reached; this page tries again" : error.message);
  }
  setTimeout(follow, EVERY_MS);
}
$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  key = $("key").value;
  $("access").hidden = true;
  follow();
});
$("logarithmic").addEventListener("change", () => drawCurves(plan));
follow();
