// The frame of all pages: paths, the bar at the top, the key.
import { render } from "./npm/preact.mjs";
import { useEffect, useRef, useState } from "./npm/hooks.mjs";
import { html, useTick, useTitle } from "./parts.js";
import { segments } from "./paths.js";
import * as server from "./server.js";
import { ColdStart, ColdStarts } from "./coldstarts.js";
import { Now } from "./now.js";
import { Models, Model } from "./models.js";
import { Playground } from "./playground.js";
import { Router } from "./router.js";
import { Socket } from "./socket.js";
import { Actions, KeyDialog } from "./actions.js";

const pages = [
  { path: "", title: "Now", lists: ["functions", "replicas", "nodes", "coldstarts"], show: () => html`<${Now} />` },
  { path: "cold-starts", title: "Cold starts", lists: ["coldstarts"], show: rest => (rest.length === 1 ? html`<${ColdStart} key=${rest[0]} id=${rest[0]} />` : html`<${ColdStarts} />`) },
  { path: "models", title: "Models", lists: ["functions", "replicas", "events"], show: rest => (rest.length === 2 ? html`<${Model} key=${rest.join("/")} name=${rest.join("/")} />` : html`<${Models} />`) },
  { path: "router", title: "Router", lists: ["functions", "routes"], show: () => html`<${Router} />` },
  { path: "playground", title: "Playground", lists: ["functions"], show: rest => html`<${Playground} model=${rest.join("/")} />` },
  { path: "socket", title: "Socket", lists: ["functions"], show: () => html`<${Socket} />` },
];

function Link() {
  const { link, retryAt } = server.useConnection();
  useTick();
  const left = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  const text = { connecting: "connecting", live: "live", lost: `no connection, next try in ${left} s`, refused: "needs a key" }[link];
  return html`<span class=${"link " + link}><i class="dot"></i>${text}</span>`;
}

// Notices are what stands above every page when something is not as it should be.
function Notices() {
  const { link, problem, upgraded, hasKey } = server.useConnection();
  return html`<div role="status" class="notices">
    ${upgraded && html`<p class="notice">The server has another version now. This page goes on with the old one. <button onClick=${() => location.reload()}>Reload</button></p>`}
    ${link === "lost" && html`<p class="notice bad">${problem} What is shown is as of then. <button onClick=${server.retry}>Try now</button></p>`}
    ${link === "refused" && html`<p class="notice bad">${hasKey ? problem : "This server wants a key: a key of a team shows the team, the admin token shows everything."} <button onClick=${() => Actions.askKey()}>Give a key</button></p>`}
  </div>`;
}

function App() {
  const [path, setPath] = useState(segments());
  const { hasKey } = server.useConnection();
  const main = useRef(null);
  const first = useRef(true);
  useEffect(() => {
    const f = () => setPath(segments());
    addEventListener("popstate", f);
    return () => removeEventListener("popstate", f);
  }, []);
  const page = pages.find(p => p.path === (path[0] || ""));
  useEffect(() => { server.follow(page ? page.lists : []); }, [page]);
  useEffect(() => {
    if (first.current) first.current = false;
    else main.current.focus({ preventScroll: true });
  }, [path.join("/")]);
  return html`
    <a class="skip" href="#main" onClick=${e => { e.preventDefault(); main.current.focus(); }}>Skip to the page</a>
    <header class="top">
      <a class="brand" href="/ui/"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M6 8h20M16 8v12" /><circle cx="16" cy="26" r="2.4" /></svg>thaw</a>
      <nav aria-label="Pages">${pages.map(p => html`<a key=${p.path} href=${"/ui/" + p.path} aria-current=${p === page ? "page" : undefined}>${p.title}</a>`)}</nav>
      <${Link} />
      <button class="key" onClick=${() => Actions.askKey()}>${hasKey ? "Key is set" : "Key"}</button>
    </header>
    <${Notices} />
    <main id="main" tabindex="-1" ref=${main}>${page ? page.show(path.slice(1)) : html`<${Missing} />`}</main>
    <footer><span>thaw ${server.version}</span><a href="/openapi.json" target="_blank" rel="noreferrer">API</a></footer>
    <${KeyDialog} />
  `;
}

function Missing() {
  useTitle("No such page");
  return html`<section class="panel"><h1>There is no such page</h1><p class="empty">The address has none. <a href="/ui/">Now</a> shows what runs.</p></section>`;
}

// The file has the bar at the top already, which is seen until this has been read.
const app = document.getElementById("app");
app.textContent = "";
render(html`<${App} />`, app);
