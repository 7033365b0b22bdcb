// What the page knows of the server: its lists, followed by one stream, and requests to it.
// The key is in this module's memory and nowhere else.
import { useEffect, useState } from "./npm/hooks.mjs";

const meta = name => document.querySelector(`meta[name="${name}"]`).content;
export const version = meta("thaw-version");

const maxEvents = 500; // kept in the page, oldest dropped
const silence = 40000; // ms: the server sends something every 15 s
const backoffFirst = 500, backoffMost = 15000; // ms

let key = "";

// state is what the shell shows of the connection. Its object is replaced on change.
export let state = { link: "connecting", needsKey: false, problem: "", retryAt: 0, upgraded: false, hasKey: false };
let wanted = []; // names of the lists that the page shows
let attempt = 0, failures = 0, connected = false, abort = null, timer = 0;
let skew = 0; // ms that the server's clock is ahead

const lists = new Map();
const listeners = new Set();
let scheduled = false;

class List {
  constructor(name) {
    this.name = name;
    this.items = new Map();
    this.fresh = null; // between reset and synced
    this.synced = false;
    this.keys = null; // in their order; null: to be sorted
    this.sorted = null; // the items so; null: to be made
  }

  apply(change) {
    const into = this.fresh || this.items;
    this.sorted = null;
    switch (change.event) {
      case "reset": this.fresh = new Map(); return;
      case "synced": this.items = this.fresh || this.items; this.fresh = this.keys = null; this.synced = true; break;
      case "put": {
        const key = keyOf(this.name, change.item), was = into.get(key);
        into.set(key, change.item);
        if (!was || orders[this.name](was, change.item)) this.keys = null;
        // Events come oldest first and are never removed.
        if (this.name === "events" && into.size > maxEvents) into.delete(into.keys().next().value);
        break;
      }
      case "removed": into.delete(change.name); this.keys = null; break;
    }
  }

  clear() {
    this.items = new Map();
    this.keys = this.sorted = null;
  }

  all() {
    if (!this.keys) this.keys = [...this.items].sort((a, b) => orders[this.name](a[1], b[1])).map(e => e[0]);
    if (!this.sorted) this.sorted = this.keys.map(k => this.items.get(k));
    return this.sorted;
  }
}

const keys = { functions: f => f.name, events: e => e.seq };
const keyOf = (name, item) => (keys[name] || (x => x.id))(item);
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const orders = {
  functions: (a, b) => compare(a.name, b.name),
  replicas: (a, b) => compare(a.function, b.function) || compare(a.since, b.since) || compare(a.id, b.id),
  nodes: (a, b) => compare(a.id, b.id),
  coldstarts: (a, b) => compare(Date.parse(b.began), Date.parse(a.began)) || compare(b.id, a.id),
  events: (a, b) => b.seq - a.seq,
  routes: (a, b) => compare(b.time, a.time),
};

const listOf = name => {
  if (!lists.has(name)) lists.set(name, new List(name));
  return lists.get(name);
};

function notify() {
  if (scheduled) return;
  scheduled = true;
  const run = () => { scheduled = false; for (const f of [...listeners]) f(); };
  // A hidden tab draws no frames; its lists go on, and it is drawn when it is shown.
  if (document.hidden) setTimeout(run, 1000); else requestAnimationFrame(run);
}

function set(change) {
  state = { ...state, ...change };
  notify();
}

// useServer draws a component again after lists or the connection changed, useConnection
// after the connection alone did.
export function useServer() {
  const [, draw] = useState(0);
  useEffect(() => {
    const f = () => draw(n => n + 1);
    listeners.add(f);
    return () => listeners.delete(f);
  }, []);
  return state;
}
export function useConnection() {
  const [shown, draw] = useState(state);
  useEffect(() => {
    const f = () => draw(state);
    listeners.add(f);
    f();
    return () => listeners.delete(f);
  }, []);
  return shown;
}

export const items = name => listOf(name).all();
export const item = (name, id) => listOf(name).items.get(id);
export const isSynced = (...names) => names.every(n => listOf(n).synced);

// now is the server's time in ms.
export const now = () => Date.now() + skew;

// follow makes the stream have these lists, and no others.
export function follow(names) {
  names = [...names].sort();
  if (names.join() === wanted.join()) return;
  wanted = names;
  connect();
}

export function setKey(value) {
  key = value;
  for (const l of lists.values()) { l.clear(); l.synced = false; }
  state = { ...state, hasKey: value !== "" };
  failures = 0;
  connect();
}

const headers = more => (key ? { ...more, authorization: "Bearer " + key } : { ...more });

function connect() {
  attempt++;
  clearTimeout(timer);
  if (abort) abort.abort();
  abort = null;
  if (wanted.length) read(attempt);
}

async function read(mine) {
  const controller = abort = new AbortController();
  let watchdog = 0;
  const alive = () => { clearTimeout(watchdog); watchdog = setTimeout(() => controller.abort(), silence); };
  let problem = "The server ended the connection.";
  try {
    alive();
    const res = await fetch("/api/v1/lists?watch&of=" + wanted.join(), { headers: headers(), signal: controller.signal, cache: "no-store" });
    if (mine !== attempt) return;
    if (res.status === 401 || res.status === 403) {
      const e = await failure(res);
      for (const l of lists.values()) l.clear();
      if (mine === attempt) set({ link: "refused", needsKey: true, problem: state.hasKey ? e.message : "" });
      return;
    }
    if (!res.ok) throw await failure(res);
    const date = Date.parse(res.headers.get("date"));
    skew = Math.abs(date - Date.now()) > 2000 ? date - Date.now() : 0;
    if (connected) checkUpgrade();
    connected = true;
    const reader = res.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (mine !== attempt) return;
      if (done) break;
      alive();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line) continue;
        const change = JSON.parse(line);
        listOf(change.list).apply(change);
      }
      failures = 0;
      if (state.link !== "live") set({ link: "live", needsKey: false, problem: "" });
      else notify();
    }
  } catch (e) {
    if (mine !== attempt) return;
    problem = e.name === "AbortError" ? "The server has been silent for too long." : e.status ? e.message : "The server does not answer.";
  } finally {
    clearTimeout(watchdog);
  }
  const wait = Math.min(backoffMost, backoffFirst * 2 ** failures++) * (0.75 + Math.random() / 2);
  set({ link: "lost", problem, retryAt: Date.now() + wait });
  timer = setTimeout(connect, wait);
}

// retry connects at once.
export function retry() {
  if (state.link === "lost") connect();
}
addEventListener("online", retry);

// A browser has few connections to one server for all its tabs: a tab that has been hidden
// for a while lets its stream go until it is shown.
const hiddenFor = 60000; // ms
let hiding = 0, paused = false;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.hidden) {
    hiding = setTimeout(() => { paused = true; attempt++; clearTimeout(timer); if (abort) abort.abort(); }, hiddenFor);
    return;
  }
  if (paused) connect(); else retry();
  paused = false;
  notify();
});

// checkUpgrade compares the page with the one that the server has now.
async function checkUpgrade() {
  try {
    const res = await fetch("/ui/", { method: "HEAD", cache: "no-store" });
    const tag = /"(.*)"/.exec(res.headers.get("etag") || "");
    if (res.ok && tag && tag[1] !== meta("thaw-tag")) set({ upgraded: true });
  } catch { /* the next connection asks again */ }
}

// failure is the error of an answer, in the server's words.
async function failure(res) {
  let message = "The server answered " + res.status + ".";
  let code = "";
  try {
    const { error } = await res.json();
    message = error.message || message;
    code = error.code || "";
  } catch { /* not one of thaw's answers */ }
  return Object.assign(new Error(message), { status: res.status, code });
}

// ask sends one request and returns the answer; its errors have a status and a message.
export async function ask(method, path, { body, signal, head } = {}) {
  let res;
  try {
    res = await fetch(path, { method, signal, cache: "no-store", headers: headers({ ...head, ...(body === undefined ? {} : { "content-type": "application/json" }) }), body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw Object.assign(new Error("The server does not answer."), { status: 0 });
  }
  if (!res.ok) throw await failure(res);
  return res;
}

export const askJSON = async (method, path, options) => (await ask(method, path, options)).json();

// socketProtocols are those of a WebSocket: it has no field for a key.
export const socketProtocols = () => (key ? ["thaw.v1", "thaw.key." + key] : ["thaw.v1"]);
