// The cases of ../README.md with the official client for Node, unchanged.
// THAW_CLIENT names the package.
import { answer, apiKey, baseURL, fake, load, model, raised, tools } from './script.mjs';

const { default: OpenAI, toFile } = await load(process.env.THAW_CLIENT);
const client = new OpenAI({ baseURL, apiKey });

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

const shown = (e) => ({
  known: e instanceof OpenAI.APIError, status: e.status ?? 0, code: e.code ?? '', param: e.param ?? '',
  type: e.type ?? '', request_id: e.requestID ?? e.request_id ?? '',
});

await answer({
  async cold_stream() {
    return collect(await client.chat.completions.create({
      model, messages: say('What is thaw?'), max_tokens: 12, temperature: 0, stream: true, stream_options: { include_usage: true },
    }));
  },
  async cold_plain() {
    const a = await client.chat.completions.create({ model, messages: say('What is thaw?'), max_tokens: 12, temperature: 0 });
    return { text: a.choices[0].message.content, finish: a.choices[0].finish_reason, usage: a.usage.total_tokens };
  },
  async tools() {
    const body = { model: fake, messages: say('Weather in Köln?'), tools, tool_choice: 'auto', parallel_tool_calls: false };
    const a = await client.chat.completions.create(body);
    const call = a.choices[0].message.tool_calls[0].function;
    const streamed = await collect(await client.chat.completions.create({ ...body, stream: true }));
    return { plain: { tool: call.name, arguments: call.arguments, finish: a.choices[0].finish_reason }, streamed };
  },
  unknown_model() {
    return raised(() => client.chat.completions.create({ model: 'tinny', messages: say('hi') }), shown);
  },
  dies() {
    return raised(async (seen) => collect(await client.chat.completions.create({
      model: fake, messages: say('@fake tokens=50 delay=20ms die=5'), stream: true,
    }), seen), shown);
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
  async batch() {
    const ids = ['a', 'b', 'c'];
    const content = ids.map((id) => JSON.stringify({
      custom_id: id, method: 'POST', url: '/v1/chat/completions', body: { model, messages: say('hi'), max_tokens: 4 },
    })).join('\n');
    const file = await client.files.create({ file: await toFile(Buffer.from(content), 'lines.jsonl'), purpose: 'batch' });
    let batch = await client.batches.create({
      input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h', metadata: { of: 'a test' },
    });
    while (!['completed', 'failed', 'expired', 'cancelled'].includes(batch.status)) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      batch = await client.batches.retrieve(batch.id);
    }
    const read = async (id) => (await client.files.content(id)).text();
    const found = (await read(batch.output_file_id)).trim().split('\n').map((line) => JSON.parse(line));
    const list = await client.batches.list({ limit: 1 });
    const known = await read(file.id) === content && list.data[0].id === batch.id && batch.metadata.of === 'a test'
      && found.map((line) => line.custom_id).sort().join() === ids.join();
    const seen = await raised(() => client.batches.cancel(batch.id), shown);
    const text = found.map((line) => line.response.body.choices[0].message.content).join('');
    return { ...seen, text: known ? text : '', chunks: batch.request_counts.completed, finish: batch.status };
  },
});
