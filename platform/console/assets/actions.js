// What changes something: it may want the admin token, which is asked for then.
import { useEffect, useRef, useState } from "./npm/hooks.mjs";
import { apiPath, html, short } from "./parts.js";
import * as server from "./server.js";

// The dialog and the announcements are one for the page.
let open = null; // {why, then}
let said = "";
const listeners = new Set();
const changed = () => { for (const f of [...listeners]) f(); };

function useActions() {
  const [, draw] = useState(0);
  useEffect(() => {
    const f = () => draw(n => n + 1);
    listeners.add(f);
    return () => listeners.delete(f);
  }, []);
}

let forget = 0;
function say(text) {
  said = text;
  changed();
  clearTimeout(forget);
  forget = setTimeout(() => { said = ""; changed(); }, 8000);
}

async function run(what, act) {
  try {
    await act();
    say(what);
  } catch (e) {
    if (e.status === 401 || e.status === 403) Actions.askKey(e.message, () => run(what, act));
    else say(e.message);
  }
}

export const Actions = {
  askKey(why = "", then = null) { open = { why, then }; changed(); },
  wake: name => run(`${short(name)} is being started.`, () => server.ask("POST", apiPath(name) + "/wake", { body: {} })),
  stop: name => run(`${short(name)} is being stopped.`, () => server.ask("POST", apiPath(name) + "/stop")),
  say,
};

export function KeyDialog() {
  useActions();
  const { hasKey } = server.useConnection();
  const dialog = useRef(null), field = useRef(null), shown = useRef(null);
  useEffect(() => {
    if (open && !dialog.current.open) { shown.current = open; dialog.current.showModal(); field.current.value = ""; }
  });
  const close = () => { open = null; dialog.current.close(); changed(); };
  const closed = () => { // the event comes later than the dialog closes: it may be asked for again by then
    if (open === shown.current) { open = null; changed(); }
  };
  const take = e => {
    e.preventDefault();
    const then = open && open.then, value = field.current.value.trim();
    close();
    server.setKey(value);
    if (then && value) then();
  };
  return html`
    <dialog ref=${dialog} aria-labelledby="key-title" onClose=${closed}>
      <form onSubmit=${take}>
        <h2 id="key-title">Key</h2>
        ${open && open.why && html`<p class="failure">${open.why}</p>`}
        <p>A key of a team shows the team. The admin token shows everything, and wakes and stops models; it is in <code>DATA/admin-token</code> on the server's machine.</p>
        <label for="key-field">Key or admin token</label>
        <input id="key-field" ref=${field} type="password" autocomplete="off" spellcheck=${false} />
        <p class="dim">It stays in the memory of this page: it is in no storage and no address, and is gone when the page is closed or loaded again.</p>
        <p class="buttons"><button class="main">Use it</button>${hasKey && html`<button type="button" onClick=${() => { close(); server.setKey(""); }}>Forget the key</button>`}<button type="button" onClick=${close}>Cancel</button></p>
      </form>
    </dialog>
    <div class="said" role="status">${said && html`<p>${said}</p>`}</div>`;
}
