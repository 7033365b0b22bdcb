package engine

import (
	"bytes"
	"math"
	"strconv"
)

type Metrics struct {
	Running int // requests in generation
	Waiting int // requests in the engine's queue
	// Tokens is a counter that grows while tokens are generated; not always of
	// tokens.
	Tokens float64
	// Flow reports that the engine has such a counter.
	Flow bool
	// Load reports that Running is known.
	Load bool
	// FirstTokens and Finished count requests that had their first token and that
	// have ended; Counted reports that the engine has both counters.
	FirstTokens, Finished int
	Counted               bool
	KVUsage               float64 // share of the KV cache in use, 0 to 1
	HitRate               float64 // share of prompt tokens found in the prefix cache, 0 to 1
}

// metricNames are the metrics that engines export, by their names.
var metricNames = map[string]string{
	"vllm:num_requests_running":              "running",
	"vllm:num_requests_waiting":              "waiting",
	"vllm:generation_tokens_total":           "tokens",
	"vllm:prompt_tokens_total":               "tokens",
	"vllm:kv_cache_usage_perc":               "kv usage",
	"vllm:gpu_cache_usage_perc":              "kv usage",
	"vllm:prefix_cache_hits_total":           "hits",
	"vllm:prefix_cache_queries_total":        "queries",
	"vllm:time_to_first_token_seconds_count": "first tokens",
	"vllm:request_success_total":             "finished",

	"sglang:num_running_reqs": "running",
	"sglang:num_queue_reqs":   "waiting",
	// The first two count whole requests, the third counts as tokens come.
	"sglang:generation_tokens_total": "tokens",
	"sglang:prompt_tokens_total":     "tokens",
	"sglang:realtime_tokens_total":   "tokens",
	"sglang:token_usage":             "kv usage",
	"sglang:cache_hit_rate":          "hit rate",

	"llamacpp:requests_processing": "running",
	"llamacpp:requests_deferred":   "waiting",
	// Tokens are counted at the end of a request, calls of decode as they happen.
	"llamacpp:n_decode_total":         "tokens",
	"llamacpp:tokens_predicted_total": "tokens",
	"llamacpp:prompt_tokens_total":    "tokens",
	"llamacpp:kv_cache_usage_ratio":   "kv usage",
}

// parseMetrics reads names and values of the Prometheus text format; series of one
// metric are summed over their names and labels.
func parseMetrics(text []byte) Metrics {
	sums := map[string]float64{}
	for line := range bytes.Lines(text) {
		name, v, ok := parseSample(line)
		metric := metricNames[name]
		switch {
		case !ok || metric == "":
		case metric == "kv usage":
			sums[metric] = max(sums[metric], v)
		case metric == "hit rate":
			sums[metric] = v
		default:
			sums[metric] += v
		}
	}
	m := Metrics{Running: clampCount(sums["running"]), Waiting: clampCount(sums["waiting"]), Tokens: sums["tokens"],
		FirstTokens: clampCount(sums["first tokens"]), Finished: clampCount(sums["finished"]), HitRate: sums["hit rate"]}
	_, m.Load = sums["running"]
	_, m.Flow = sums["tokens"]
	_, first := sums["first tokens"]
	_, ended := sums["finished"]
	m.Counted = first && ended
	if sums["queries"] > 0 {
		m.HitRate = sums["hits"] / sums["queries"]
	}
	m.HitRate, m.KVUsage = min(max(m.HitRate, 0), 1), min(max(sums["kv usage"], 0), 1)
	return m
}

func clampCount(f float64) int { return int(min(max(f, 0), 1<<30)) }

// parseSample splits `name{labels} value [time]`.
func parseSample(line []byte) (name string, value float64, ok bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] == '#' {
		return "", 0, false
	}
	i := bytes.IndexAny(line, "{ \t")
	if i <= 0 {
		return "", 0, false
	}
	name, rest := string(line[:i]), line[i:]
	if rest[0] == '{' {
		j := bytes.LastIndexByte(rest, '}')
		if j < 0 {
			return "", 0, false
		}
		rest = rest[j+1:]
	}
	f := bytes.Fields(rest)
	if len(f) == 0 {
		return "", 0, false
	}
	v, err := strconv.ParseFloat(string(f[0]), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return "", 0, false
	}
	return name, v, true
}
