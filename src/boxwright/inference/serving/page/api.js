// Asking the server.

const RETRIES = 3;
let key = "";

export class KeyNeeded extends Error {
  name = "KeyNeeded";
}

export function useKey(text) { key = text; }

export async function served() { return ask("models"); }

// A picture that the server offers, by its place in the list of their names.
export async function sample(number) {
  const answer = await fetch(`samples/${number}`, { headers: headers() });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.blob();
}

// What a model finds in a picture; `milliseconds` is from sending it to having the answer.
export async function detect(model, blob, least) {
  const began = performance.now();
  const answer = await ask(`detect?min_score=${least}&model=${encodeURIComponent(model)}`, { method: "POST", body: blob });
  return { ...answer, milliseconds: performance.now() - began };
}

function headers() { return key ? { Authorization: `Bearer ${key}` } : {}; }

async function ask(address, options = {}) {
  for (let tries = 0; ; tries++) {
    const answer = await fetch(address, { ...options, headers: headers() });
    const content = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
    if (answer.ok) return content;
    if (answer.status === 401) throw new KeyNeeded(content.error);
    if (answer.status !== 503 || tries === RETRIES) throw new Error(content.error);
    await new Promise((done) => setTimeout(done, 1000));
  }
}
