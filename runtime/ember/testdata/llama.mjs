// Asks llama.cpp, through node-llama-cpp, for tokens. Reads jobs as JSON from the
// file named first, writes a list of results to the file named second:
//   {"model": "x.gguf", "generate": [{"prompt": [ids], "n": 24}], "tokenize": ["text"]}
// gives {"generate": [[ids]], "tokenize": [[ids]]}.
// One thread: llama.cpp's threads spin. Keys and values in F32, as the engine has them.
import {readFile, writeFile} from "node:fs/promises";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const [, , jobsFile, resultsFile, modules] = process.argv;
const require = createRequire(modules + "/");
const {getLlama} = await import(pathToFileURL(require.resolve("node-llama-cpp")));
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: "error"});
const results = [];
for (const job of JSON.parse(await readFile(jobsFile, "utf8"))) {
    const model = await llama.loadModel({modelPath: job.model});
    const out = {generate: [], tokenize: []};
    for (const text of job.tokenize ?? []) out.tokenize.push([...model.tokenize(text, true)]);
    if (job.generate?.length) {
        const context = await model.createContext({
            contextSize: 512, threads: 1, flashAttention: false,
            experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32"
        });
        const sequence = context.getSequence();
        for (const {prompt, n} of job.generate) {
            await sequence.clearHistory();
            const ids = [];
            for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
                ids.push(token);
                if (ids.length === n) break;
            }
            out.generate.push(ids);
        }
        await context.dispose();
    }
    await model.dispose();
    results.push(out);
}
await writeFile(resultsFile, JSON.stringify(results));
process.exit(0);
