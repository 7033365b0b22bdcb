// Where a cold start spent its time, beside the median of its model.
import { html, seconds, word } from "./parts.js";

export const order = ["queue", "place", "stage", "spawn", "load", "warmup", "first_token"];
export const phaseWords = { queue: "queue", place: "place", stage: "stage", spawn: "spawn", load: "load", warmup: "warmup", first_token: "first token" };

const middle = list => {
  const s = [...list].sort((a, b) => a - b);
  const i = s.length >> 1;
  return s.length % 2 ? s[i] : (s[i - 1] + s[i]) / 2;
};

// lengthOf is the whole length of a start, its first token included.
export const lengthOf = start => Math.max(start.total, ...start.phases.map(p => p.start + p.duration));

// medians are those of the starts of a function that became ready: of the whole, and of
// each phase its start and length.
export function medians(starts, name) {
  const ready = starts.filter(s => s.function === name && s.state === "READY");
  if (!ready.length) return null;
  const phases = {};
  for (const p of order) {
    const spans = ready.flatMap(s => s.phases.filter(x => x.phase === p));
    if (spans.length) phases[p] = { start: middle(spans.map(s => s.start)), duration: middle(spans.map(s => s.duration)) };
  }
  return { of: ready.length, total: middle(ready.map(lengthOf)), phases };
}

const ended = ["READY", "FAILED", "UNLOADED"];
// stateOf is the state of a start; one that has no place yet is cold.
export const stateOf = start => (ended.includes(start.state) || start.node ? start.state : "UNLOADED");
// isOpen reports whether a phase of a start goes on; endOf is the end of its last complete one.
export const isOpen = start => !ended.includes(stateOf(start));
export const endOf = start => Math.max(0, ...start.phases.map(p => p.start + p.duration));

export function Waterfall({ start, median, parts }) {
  const length = Math.max(lengthOf(start), median ? median.total : 0) || 1;
  const place = (from, long) => ({ left: (100 * from) / length + "%", width: Math.max(0.4, (100 * long) / length) + "%" });
  const rows = order.filter(p => start.phases.some(x => x.phase === p) || (median && median.phases[p]));
  const ended = endOf(start);
  const longest = start.phases.reduce((a, b) => (a && a.duration >= b.duration ? a : b), null);
  return html`<table class="waterfall">
    <caption class="hidden">Phases of the cold start</caption>
    <thead class="hidden"><tr><th scope="col">Phase</th><th scope="col">When</th><th scope="col">Length</th>${median && html`<th scope="col">Median</th>`}</tr></thead>
    <tbody>${rows.map(p => {
      const spans = start.phases.filter(x => x.phase === p);
      const usual = median && median.phases[p];
      const sum = spans.reduce((n, s) => n + s.duration, 0);
      return [html`<tr key=${p}>
        <th scope="row">${phaseWords[p]}</th>
        <td class="track"><div>
          ${spans.map(s => html`<i class=${"phase" + (s === longest ? " longest" : "")} style=${place(s.start, s.duration)}></i>`)}
          ${usual && html`<i class="usual" style=${place(usual.start, usual.duration)}></i>`}
        </div></td>
        <td class="num">${spans.length ? seconds(sum) : "–"}</td>
        ${median && html`<td class="num dim">${usual ? seconds(usual.duration) : ""}</td>`}
      </tr>`, ...(parts ? spans.flatMap(s => s.parts || []) : []).map((x, i) => html`<tr class="part" key=${p + i}>
        <th scope="row">${x.name}</th><td class="track"><div><i class="phase" style=${place(x.start, x.duration)}></i></div></td><td class="num">${seconds(x.duration)}</td>${median && html`<td></td>`}
      </tr>`)];
    })}${isOpen(start) && html`<tr key="open"><th scope="row">${word(start.state)}</th><td class="track"><div><i class="phase open" style=${place(ended, start.total - ended)}></i></div></td><td class="num">${seconds(start.total - ended)}</td>${median && html`<td></td>`}</tr>`}</tbody>
  </table>`;
}
