package engine

import (
	"bytes"
	"math"
	"slices"
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

// metricNames of the metrics an engine exports; several mean the sum of those there.
type metricNames struct{ running, waiting, tokens, kv, hits, queries, rate, firstTokens, finished []string }

// or is the union of both.
func (n metricNames) or(b metricNames) metricNames {
	j := func(x, y []string) []string { return append(slices.Clone(x), y...) }
	return metricNames{j(n.running, b.running), j(n.waiting, b.waiting), j(n.tokens, b.tokens), j(n.kv, b.kv),
		j(n.hits, b.hits), j(n.queries, b.queries), j(n.rate, b.rate), j(n.firstTokens, b.firstTokens), j(n.finished, b.finished)}
}

// parseMetrics reads names and values of the Prometheus text format; series of one
// name are summed over their labels.
func parseMetrics(text []byte, n metricNames) Metrics {
	var m Metrics
	var running, waiting, hits, queries, firstTokens, finished float64
	var hasFirst, hasFinished bool
	for line := range bytes.Lines(text) {
		name, v, ok := parseSample(line)
		if !ok {
			continue
		}
		switch {
		case slices.Contains(n.running, name):
			running, m.Load = running+v, true
		case slices.Contains(n.waiting, name):
			waiting += v
		case slices.Contains(n.tokens, name):
			m.Tokens, m.Flow = m.Tokens+v, true
		case slices.Contains(n.kv, name):
			m.KVUsage = max(m.KVUsage, v)
		case slices.Contains(n.hits, name):
			hits += v
		case slices.Contains(n.queries, name):
			queries += v
		case slices.Contains(n.rate, name):
			m.HitRate = v
		case slices.Contains(n.firstTokens, name):
			firstTokens, hasFirst = firstTokens+v, true
		case slices.Contains(n.finished, name):
			finished, hasFinished = finished+v, true
		}
	}
	m.Running, m.Waiting = clampCount(running), clampCount(waiting)
	m.FirstTokens, m.Finished, m.Counted = clampCount(firstTokens), clampCount(finished), hasFirst && hasFinished
	if queries > 0 {
		m.HitRate = hits / queries
	}
	m.HitRate, m.KVUsage = min(max(m.HitRate, 0), 1), min(max(m.KVUsage, 0), 1)
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
