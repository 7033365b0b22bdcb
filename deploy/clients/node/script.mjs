// What the case scripts have in common: where thaw is, and how they answer.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

export const baseURL = process.env.THAW_BASE_URL;
export const apiKey = process.env.THAW_API_KEY || 'none';
export const model = process.env.THAW_MODEL || 'tiny';
export const fake = process.env.THAW_FAKE || 'fake';
export const tools = JSON.parse(readFileSync(new URL('../tools.json', import.meta.url)));

// load imports a package from THAW_NODE_CLIENTS, where .ci/components installs them.
const require = createRequire(`${process.env.THAW_NODE_CLIENTS}/`);
export const load = (name) => import(pathToFileURL(require.resolve(name)));

// raised is what the user of the client is shown of an error.
export async function raised(run, shown) {
  const seen = {};
  try {
    await run(seen);
    return { ...seen, error: null };
  } catch (e) {
    return { ...seen, error: { class: e.constructor.name, message: String(e.message), ...shown(e) } };
  }
}

// answer answers each case named on the input with a line of JSON.
export async function answer(cases) {
  for await (const line of createInterface({ input: process.stdin })) {
    let told;
    try {
      told = await cases[line.trim()]();
    } catch (e) {
      told = { failed: String(e?.stack ?? e) };
    }
    console.log(JSON.stringify({ case: line.trim(), ...told }));
  }
}
