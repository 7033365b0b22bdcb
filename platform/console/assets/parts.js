// Parts that every page is made of.
import { h } from "./npm/preact.mjs";
import { useEffect, useState } from "./npm/hooks.mjs";
import htm from "./npm/htm.mjs";
import * as server from "./server.js";

export const html = htm.bind(h);

// words are the states as people see them, as in the terminal.
const words = { DOWNLOADING: "staging", LOADING_TO_GPU: "loading", READY: "ready", SLEEPING: "sleeping", DRAINING: "draining", FAILED: "failed", UNLOADED: "cold" };
export const word = state => words[state] || "cold";

// tiers are where the weights of a model are nearest, in words.
export const tiers = { GPU_RESIDENT: "GPU", SLEEPING: "asleep", DRAM_CACHED: "memory", NVME_CACHED: "disk", REMOTE: "remote" };

export function State({ state, percent }) {
  const w = word(state);
  return html`<span class=${"state " + w}><i class="dot"></i>${w}${percent !== undefined && (w === "staging" || w === "loading") ? html` <span class="num">${percent} %</span>` : ""}</span>`;
}

const units = ["B", "KiB", "MiB", "GiB", "TiB"];
export function bytes(n) {
  if (n === undefined || n === null) return "–";
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i++; }
  return (i === 0 || n >= 100 ? Math.round(n) : n.toFixed(1).replace(/\.0$/, "")) + " " + units[i];
}

// seconds are a length of time that has been measured.
export function seconds(s) {
  if (s === undefined || s === null || s < 0) return "–";
  if (s < 0.0005) return "0 ms";
  if (s < 1) return Math.round(s * 1000) + " ms";
  if (s < 10) return s.toFixed(2) + " s";
  if (s < 100) return s.toFixed(1) + " s";
  return span(s);
}

// span is a length of time in the coarse, for ages and countdowns.
export function span(s) {
  s = Math.max(0, Math.round(s));
  if (s < 60) return s + " s";
  const two = n => String(n).padStart(2, "0");
  if (s < 3600) return Math.floor(s / 60) + ":" + two(s % 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + ":" + two(Math.floor(s / 60) % 60) + " h";
  return Math.floor(s / 86400) + " d";
}

const tickers = new Set();
setInterval(() => { if (!document.hidden) for (const f of [...tickers]) f(); }, 1000);

// useTick draws a component again every second.
export function useTick() {
  const [, draw] = useState(0);
  useEffect(() => {
    const f = () => draw(n => n + 1);
    tickers.add(f);
    return () => tickers.delete(f);
  }, []);
}

// Age is the time since a moment, Until the time to one.
export function Age({ at }) {
  useTick();
  return html`<time class="num" datetime=${at} title=${date(at)}>${span((server.now() - Date.parse(at)) / 1000)}</time>`;
}
export function Until({ at }) {
  useTick();
  return html`<time class="num" datetime=${at} title=${date(at)}>${span((Date.parse(at) - server.now()) / 1000)}</time>`;
}

// date is a moment in full.
export const date = at => new Date(at).toLocaleString([], { hourCycle: "h23", dateStyle: "medium", timeStyle: "medium" });

export const clock = at => new Date(at).toLocaleTimeString([], { hourCycle: "h23", hour: "2-digit", minute: "2-digit", second: "2-digit" });

// short is a function's name as its own team says it.
export const short = name => name.replace(/^default\//, "");
export const modelPath = name => "/ui/models/" + name.split("/").map(encodeURIComponent).join("/");
export const startPath = id => "/ui/cold-starts/" + encodeURIComponent(id);
export const apiPath = name => "/api/v1/functions/" + name.split("/").map(encodeURIComponent).join("/");

export const ModelLink = ({ name }) => html`<a href=${modelPath(name)} title=${name}>${short(name)}</a>`;

// Bar is a bar of segments {label, value, kind, title}; what is left of total is free.
export function Bar({ label, segments, total, note }) {
  const used = segments.reduce((n, s) => n + s.value, 0);
  const of = Math.max(total, used) || 1;
  const text = segments.map(s => `${s.label} ${bytes(s.value)}`).join(", ") || "nothing";
  return html`<div class="bar-row">
    <span class="bar-label">${label}</span>
    <div class="bar" role="img" aria-label=${`${text}; ${bytes(used)} of ${bytes(total)}`}>
      ${segments.map(s => html`<span key=${s.key || s.label} class=${"segment " + (s.kind || "")} style=${{ width: (100 * s.value) / of + "%" }} title=${`${s.label}: ${bytes(s.value)}${s.title ? ", " + s.title : ""}`}>${s.label}</span>`)}
    </div>
    <span class="bar-note num">${note || `${bytes(used)} of ${bytes(total)}`}</span>
  </div>`;
}

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

// Loading stands where a list will be.
export const Loading = () => html`<p class="empty" role="status">Loading</p>`;

// Failure is an error with its text in the server's words.
export const Failure = ({ error }) => (error ? html`<p class="failure" role="alert">${error.message}</p>` : null);

// Section is a panel; the one that is the page itself has its first heading.
export const Section = ({ title, count, children, actions, id, main }) => html`<section class="panel" aria-labelledby=${id}>
  <header><${main ? "h1" : "h2"} id=${id}>${title}${count !== undefined ? html` <span class="count num">${count}</span>` : ""}<//>${actions}</header>
  ${children}
</section>`;

// useTitle names the page in the browser.
export function useTitle(title) {
  useEffect(() => { document.title = title ? title + " · thaw" : "thaw"; }, [title]);
}
