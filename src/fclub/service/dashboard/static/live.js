// The stream of a server: server-sent events over fetch, since EventSource cannot send a token.

const KEY = "fclub-token";
const KEPT = 1200;
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

export const samples = [];
let running = new AbortController();
let again = () => {};

// What is drawn fits the width that it had: draw it anew for another one.
addEventListener("widths", () => again());

// A browser may keep a page that was left, and its stream with it, for a minute: end the stream.
addEventListener("pagehide", () => running.abort());

export async function follow(show) {
  takeTokenFromAddress();
  for (let failures = 0; ; failures += 1) {
    try {
      const answer = await open();
      failures = 0;
      for await (const [name, data] of events(answer.body)) receive(name, data, show);
    } catch (error) {
      if (!(error instanceof TypeError) && error.name !== "AbortError") throw error;
    }
    status("lost", "connection lost, trying again");
    await pause(Math.min(10000, 500 * 2 ** failures));
  }
}

// One answer of a route, beside the stream.
export async function ask(path) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY)}` };
  const answer = await fetch(path, { headers, signal: running.signal });
  return { ok: answer.ok, body: await answer.json() };
}

function takeTokenFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!token) return;
  sessionStorage.setItem(KEY, token);
  history.replaceState(null, "", location.pathname);
}

async function open() {
  for (let refusal = ""; ; ) {
    const token = sessionStorage.getItem(KEY);
    if (token) {
      running = new AbortController();
      const headers = { Authorization: `Bearer ${token}` };
      const answer = await fetch("/v1/live", { headers, signal: running.signal });
      if (answer.ok) return answer;
      if (![401, 403].includes(answer.status)) throw new TypeError(`status ${answer.status}`);
      refusal = (await answer.json()).error;
    }
    sessionStorage.setItem(KEY, await askForToken(refusal));
  }
}

function askForToken(refusal) {
  status("lost", "signed out");
  const dialog = document.getElementById("sign-in");
  const refused = document.getElementById("refused");
  refused.hidden = !refusal;
  refused.textContent = refusal;
  dialog.showModal();
  return new Promise((done) => {
    dialog.querySelector("form").addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        dialog.close();
        done(document.getElementById("token").value.trim());
      },
      { once: true },
    );
  });
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const [name, data] = part.split("\n").map((line) => line.slice(line.indexOf(":") + 2));
      yield [name, JSON.parse(data)];
    }
  }
}

function receive(name, data, show) {
  if (name === "history") {
    samples.splice(0, samples.length, ...data);
    return;
  }
  const ahead = samples.length ? samples.at(-1).t - data.sample.t : 0;
  if (ahead > 0) for (const one of samples) one.t -= ahead; // the clock was set back
  if (samples.at(-1)?.t !== data.sample.t) samples.push(data.sample);
  if (samples.length > KEPT) samples.splice(0, samples.length, ...samples.filter((_, k) => k % 2));
  again = () => show(data);
  const since = performance.now();
  show(data);
  performance.clearMeasures("update");
  performance.measure("update", { start: since });
  status("live", data.connected ? "live" : "live, cut off from the federation");
}

function status(kind, text) {
  const pill = document.getElementById("status");
  pill.className = `pill ${kind}`;
  if (pill.textContent !== text) pill.textContent = text;
}
