// The cases of ../README.md with the AI SDK and its provider for servers that
// speak OpenAI's API, unchanged.
import { answer, apiKey, baseURL, fake, load, model, raised, tools as declared } from './script.mjs';

const { AISDKError, generateText, jsonSchema, stepCountIs, streamText, tool } = await load('ai');
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
const thaw = createOpenAICompatible({ name: 'thaw', baseURL, apiKey, includeUsage: true });

// It has names of its own for what a stream ends with.
const finishes = { 'tool-calls': 'tool_calls', 'content-filter': 'content_filter' };
const finish = (reason) => finishes[reason] ?? reason ?? null;

async function collect(stream, seen = {}) {
  Object.assign(seen, { text: '', chunks: 0, finish: null, tool: '', arguments: '', usage: null });
  for await (const part of stream.fullStream) {
    switch (part.type) {
      case 'text-delta':
        seen.chunks++;
        seen.text += part.text;
        break;
      case 'tool-call':
        seen.tool += part.toolName;
        seen.arguments += JSON.stringify(part.input);
        break;
      case 'finish':
        seen.finish = finish(part.finishReason);
        seen.usage = part.totalUsage.totalTokens;
        break;
      case 'error':
        throw part.error;
    }
  }
  return seen;
}

const shown = (e) => {
  const inner = e.data?.error ?? e;
  return {
    known: AISDKError.isInstance(e), status: e.statusCode ?? 0, code: inner.code ?? '', param: inner.param ?? '',
    type: inner.type ?? '', request_id: e.responseHeaders?.['x-request-id'] ?? '',
  };
};

// An error of a stream is thrown by collect; it is not to be printed as well.
const stream = (options) => streamText({ ...options, onError: () => {} });

const tools = Object.fromEntries(declared.map(({ function: f }) => [
  f.name, tool({ description: f.description, inputSchema: jsonSchema(f.parameters), strict: f.strict }),
]));

await answer({
  cold_stream() {
    return collect(stream({ model: thaw(model), prompt: 'What is thaw?', maxOutputTokens: 12, temperature: 0 }));
  },
  async cold_plain() {
    const a = await generateText({ model: thaw(model), prompt: 'What is thaw?', maxOutputTokens: 12, temperature: 0 });
    return { text: a.text, finish: finish(a.finishReason), usage: a.usage.totalTokens };
  },
  async tools() {
    const options = {
      model: thaw(fake), prompt: 'Weather in Köln?', tools, toolChoice: 'auto', stopWhen: stepCountIs(1),
      providerOptions: { thaw: { parallel_tool_calls: false } },
    };
    const a = await generateText(options);
    const [call] = a.toolCalls;
    return {
      plain: { tool: call.toolName, arguments: JSON.stringify(call.input), finish: finish(a.finishReason) },
      streamed: await collect(stream(options)),
    };
  },
  unknown_model() {
    return raised(() => generateText({ model: thaw('tinny'), prompt: 'hi' }), shown);
  },
  dies() {
    return raised((seen) => collect(stream({ model: thaw(fake), prompt: '@fake tokens=50 delay=20ms die=5' }), seen), shown);
  },
  async cancel() {
    const leave = new AbortController();
    let chunks = 0;
    for await (const _ of stream({ model: thaw(fake), prompt: '@fake tokens=3000 delay=20ms', abortSignal: leave.signal }).textStream) {
      chunks++;
      leave.abort();
    }
    return { chunks };
  },
});
