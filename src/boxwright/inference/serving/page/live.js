// Detecting in a webcam or a video, frame by frame: each frame is shown with what was found in it.

import { detect } from "./api.js";

const MOST_SIDE = 1920;

export class Live {
  // `asked` returns the models and the confidence threshold; `shown` is called with each frame and its answers.
  constructor(video, asked, shown, failed) {
    Object.assign(this, { video, asked, shown, failed, turn: 0, kind: "", stale: true });
    this.frame = document.createElement("canvas");
    video.addEventListener("seeked", () => { this.stale = true; });
  }

  async webcam() {
    if (!navigator.mediaDevices) throw new Error("browsers offer the webcam only to pages of localhost or https");
    this.stop();
    const turn = ++this.turn;
    const stream = await navigator.mediaDevices.getUserMedia({ video: { width: { ideal: 1280 } } });
    // Meanwhile something else may have been chosen.
    if (turn !== this.turn) return void stream.getTracks().forEach((track) => track.stop());
    this.video.srcObject = stream;
    await this.begin("webcam");
  }

  async play(blob) {
    this.stop();
    this.turn++;
    this.video.src = URL.createObjectURL(blob);
    await this.begin("video");
  }

  async begin(kind) {
    const turn = this.turn;
    this.kind = kind;
    try {
      await this.video.play();
    } catch (error) {
      // Stopped before it began.
      if (error.name === "AbortError") return;
      throw kind === "video" ? new Error("this browser cannot play the video") : error;
    }
    this.run(turn);
  }

  stop() {
    this.turn++;
    this.video.pause();
    this.video.srcObject?.getTracks().forEach((track) => track.stop());
    if (this.video.src) URL.revokeObjectURL(this.video.src);
    this.video.srcObject = null;
    this.video.removeAttribute("src");
    this.kind = "";
  }

  async run(turn) {
    try {
      while (turn === this.turn) {
        if (this.video.readyState >= 2 && (!this.video.paused || this.stale)) await this.step(turn);
        await new Promise(requestAnimationFrame);
      }
    } catch (error) {
      if (turn !== this.turn) return;
      this.stop();
      this.failed(error);
    }
  }

  async step(turn) {
    this.stale = false;
    const { videoWidth: width, videoHeight: height } = this.video;
    const scale = Math.min(1, MOST_SIDE / Math.max(width, height));
    this.frame.width = Math.round(width * scale);
    this.frame.height = Math.round(height * scale);
    this.frame.getContext("2d").drawImage(this.video, 0, 0, this.frame.width, this.frame.height);
    const image = await createImageBitmap(this.frame);
    const blob = await new Promise((done) => this.frame.toBlob(done, "image/jpeg", 0.9));
    const { models, least } = this.asked();
    const answers = await Promise.all(models.map((model) => detect(model, blob, least)));
    if (turn !== this.turn) return;
    this.shown({ image, blob, width: image.width, height: image.height, found: new Map(models.map((model, number) => [model, answers[number]])) });
  }
}
