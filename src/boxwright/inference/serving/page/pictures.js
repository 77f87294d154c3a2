// The pictures and videos that were given, and what each model found in the pictures.

import { detect } from "./api.js";

export class Pictures {
  // `changed` is called with each item whose content changed, `failed` with an error that concerns all of them.
  constructor(changed, failed) {
    Object.assign(this, { items: [], changed, failed, models: [], first: null, working: false });
  }

  async add(file) {
    const kind = file.type.startsWith("video/") ? "video" : "picture";
    const item = { name: this.ownName(file.name || "picture.png"), kind, blob: file, found: new Map(), error: "" };
    item.thumb = document.createElement("canvas");
    this.items.push(item);
    if (kind === "picture") await this.measure(item);
    return item;
  }

  // Annotation tools tell images apart by their names.
  ownName(name) {
    const taken = new Set(this.items.map((one) => one.name));
    const dot = name.lastIndexOf(".") > 0 ? name.lastIndexOf(".") : name.length;
    let number = 1, own = name;
    while (taken.has(own)) own = `${name.slice(0, dot)}-${++number}${name.slice(dot)}`;
    return own;
  }

  async measure(item) {
    try {
      const image = await createImageBitmap(item.blob);
      Object.assign(item, { width: image.width, height: image.height });
      thumbnail(item.thumb, image, image.width, image.height);
      image.close();
    } catch {
      item.error = `${item.name}: this browser cannot display it`;
    }
  }

  remove(item) {
    this.items = this.items.filter((one) => one !== item);
  }

  // What is still to be asked, that of the picture on the screen first.
  next() {
    const waits = (item) => item.kind === "picture" && !item.error && this.models.some((model) => !item.found.has(model));
    return this.first && this.items.includes(this.first) && waits(this.first) ? this.first : this.items.find(waits);
  }

  async work() {
    if (this.working) return;
    this.working = true;
    try {
      for (let item = this.next(); item; item = this.next()) await this.ask(item);
    } catch (error) {
      this.failed(error);
    } finally {
      this.working = false;
    }
  }

  async ask(item) {
    const models = this.models.filter((model) => !item.found.has(model));
    const answers = await Promise.allSettled(models.map((model) => detect(model, item.blob, 0)));
    answers.forEach((answer, number) => {
      if (answer.status === "fulfilled") item.found.set(models[number], answer.value);
    });
    const failed = answers.find((answer) => answer.status === "rejected")?.reason;
    if (failed?.name === "KeyNeeded" || failed instanceof TypeError) throw failed;
    if (failed) item.error = `${item.name}: ${failed.message}`;
    this.changed(item);
  }
}

export function thumbnail(canvas, image, width, height) {
  const scale = Math.min(1, 224 / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(width * scale));
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
}
