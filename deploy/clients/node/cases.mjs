// The cases of ../README.md with the official client for Node, unchanged.
// THAW_CLIENT names the package, THAW_NODE_CLIENTS the folder it is installed in.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.env.THAW_NODE_CLIENTS}/`);
const { default: OpenAI } = await import(pathToFileURL(require.resolve(process.env.THAW_CLIENT)));
const client = new OpenAI({
  baseURL: process.env.THAW_BASE_URL,
  apiKey: process.env.THAW_API_KEY || 'none',
});

const tools = JSON.parse(readFileSync(new URL('../tools.json', import.meta.url)));
const fake = process.env.THAW_FAKE || 'fake';
const say = (content) => [{ role: 'user', content }];

async function collect(stream, seen = {}) {
  Object.assign(seen, { text: '', chunks: 0, finish: null, tool: '', arguments: '', usage: null });
  for await (const chunk of stream) {
    seen.chunks++;
    if (chunk.usage) seen.usage = chunk.usage.total_tokens;
    const choice = chunk.choices[0];
    if (!choice) continue;
    seen.text += choice.delta.content ?? '';
    seen.finish = choice.finish_reason ?? seen.finish;
    const call = choice.delta.tool_calls?.[0];
    seen.tool += call?.function?.name ?? '';
    seen.arguments += call?.function?.arguments ?? '';
  }
  return seen;
}

// raised is what the user of the client is shown of an error.
async function raised(run) {
  const seen = {};
  try {
    await run(seen);
    return { ...seen, error: null };
  } catch (e) {
    return {
      ...seen,
      error: {
        class: e.constructor.name, known: e instanceof OpenAI.APIError, status: e.status ?? 0, code: e.code ?? '', param: e.param ?? '',
        type: e.type ?? '', message: String(e.message), request_id: e.requestID ?? e.request_id ?? '',
      },
    };
  }
}

const cases = {
  async cold_stream() {
    return collect(await client.chat.completions.create({
      model: 'tiny', messages: say('What is thaw?'), max_tokens: 12, temperature: 0, stream: true, stream_options: { include_usage: true },
    }));
  },
  async cold_plain() {
    const answer = await client.chat.completions.create({ model: 'tiny', messages: say('What is thaw?'), max_tokens: 12, temperature: 0 });
    return { text: answer.choices[0].message.content, finish: answer.choices[0].finish_reason, usage: answer.usage.total_tokens };
  },
  async tools() {
    const body = { model: fake, messages: say('Weather in Köln?'), tools, tool_choice: 'auto', parallel_tool_calls: false };
    const answer = await client.chat.completions.create(body);
    const call = answer.choices[0].message.tool_calls[0].function;
    const streamed = await collect(await client.chat.completions.create({ ...body, stream: true }));
    return { plain: { tool: call.name, arguments: call.arguments, finish: answer.choices[0].finish_reason }, streamed };
  },
  unknown_model() {
    return raised(() => client.chat.completions.create({ model: 'tinny', messages: say('hi') }));
  },
  dies() {
    return raised(async (seen) => collect(await client.chat.completions.create({
      model: fake, messages: say('@fake tokens=50 delay=20ms die=5'), stream: true,
    }), seen));
  },
  async cancel() {
    const stream = await client.chat.completions.create({ model: fake, messages: say('@fake tokens=3000 delay=20ms'), stream: true });
    let chunks = 0;
    for await (const _ of stream) {
      chunks++;
      stream.controller.abort();
    }
    return { chunks };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = await cases[line.trim()]();
  } catch (e) {
    answer = { failed: String(e?.stack ?? e) };
  }
  console.log(JSON.stringify({ case: line.trim(), ...answer }));
}
