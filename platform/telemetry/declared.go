package telemetry

import "github.com/prometheus/client_golang/prometheus"

type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	buckets    []float64 // upper bounds of a histogram; nil: a counter or a gauge
}

func counter(name, help string, labels ...string) metric {
	return metric{name, help, prometheus.CounterValue, labels, nil}
}

func gauge(name, help string, labels ...string) metric {
	return metric{name, help, prometheus.GaugeValue, labels, nil}
}

func histogram(name, help string, buckets []float64, labels ...string) metric {
	return metric{name, help, prometheus.UntypedValue, labels, buckets}
}

// Buckets in seconds of requests, of tokens and of cold starts.
var (
	requestBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	tokenBuckets     = []float64{.001, .0025, .005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}
	coldStartBuckets = []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800}
)

// declarations lists every metric of the programs, in groups by the package that
// measures it.
var declarations = []metric{
	// activator
	counter("thaw_requests_total", "Requests by how they ended; code 499 is a client that left, a stream that broke counts with the code of its error.", "model", "team", "route", "code", "cold"),
	histogram("thaw_request_seconds", "Time from the whole request to the end of its answer.", requestBuckets, "model", "team", "cold"),
	histogram("thaw_time_to_first_token_seconds", "Time from the whole request to the first token of a stream.", requestBuckets, "model", "team", "cold"),
	histogram("thaw_time_per_output_token_seconds", "Mean time between the tokens of a stream, after its first; of streams whose engine reports the number of tokens.", tokenBuckets, "model", "team", "cold"),
	histogram("thaw_plain_answer_seconds", "Time from the whole request to the engine's answer, of answers that are no stream of tokens.", requestBuckets, "model", "team", "cold"),
	histogram("thaw_queue_wait_seconds", "Time a request waited in its queue, of those that waited.", requestBuckets, "model", "team"),
	histogram("thaw_cold_start_phase_seconds", "Phases of cold starts; source is the tier the bytes came from.", coldStartBuckets, "model", "team", "phase", "source", "result"),
	histogram("thaw_cold_start_seconds", "Cold starts from the wake to READY.", coldStartBuckets, "model", "team", "result"),
	counter("thaw_quota_rejections_total", "Requests refused by a limit of their team.", "team", "reason"),
	counter("thaw_tokens_total", "Tokens that engines reported as used.", "model", "team", "kind"),
	counter("thaw_engine_errors_total", "Answers that an engine broke; kind is error_frame (an error of its own, also one followed by [DONE]), died, hung, refused, cut, protocol or unsolicited (bytes that no request asked for).", "model", "team", "kind"),
	counter("thaw_retries_total", "Requests tried on another replica because the first one failed before its first byte.", "model", "team"),
	counter("thaw_route_decisions_total", "Decisions of Routers; stage is what they needed (rules, score or intent), state the target's, cache exact, miss or off.", "router", "team", "rule", "stage", "target", "cache", "state"),
	counter("thaw_route_escalations_total", "Requests given to the next target because this one failed them before the first byte.", "router", "team", "target"),
	histogram("thaw_route_outcomes", "How good answers were, from 0 to 1, as their users reported.", []float64{0, .25, .5, .75, 1}, "router", "team", "rule", "target"),
	counter("thaw_composition_calls_total", "Calls that Compositions made to their members and coordinators.", "model", "team"),
	gauge("thaw_buffered_requests", "Requests that wait in the queue.", "model", "team"),
	gauge("thaw_buffer_bytes", "Bytes of the bodies that wait in the queue.", "model", "team"),
	gauge("thaw_active_requests", "Requests in flight at replicas.", "model", "team"),

	// activator/batches
	gauge("thaw_batches", "Batches that have not ended.", "team", "status"),
	gauge("thaw_batch_lines_waiting", "Lines of running batches that have no entry in an output or error file yet.", "team"),
	counter("thaw_batch_lines_total", "Lines of batches that got their entry; result is completed (the output) or failed (the errors).", "team", "result"),

	// activator/cache
	counter("thaw_answer_cache_requests_total", "Requests to functions with a cache on; result is exact (answered from it) or miss.", "model", "team", "result"),
	gauge("thaw_answer_cache_bytes", "Memory of the answers in the cache."),
	gauge("thaw_answer_cache_answers", "Answers in the cache."),
	counter("thaw_answer_cache_evicted_total", "Answers dropped from the cache because others needed their room."),

	// activator/remote; by is the team that the request counts against
	counter("thaw_remote_requests_total", "Requests for a Remote; result is ok, failed, left (its client did) or refused (by the circuit, a limit or a budget, before it was sent).", "model", "team", "by", "result"),
	counter("thaw_remote_tokens_total", "Tokens that a Remote was charged for; kind is prompt or completion.", "model", "team", "by", "kind"),
	counter("thaw_remote_estimates_total", "Answers of a Remote that named no usage, so that their tokens were estimated.", "model", "team", "by"),
	counter("thaw_spend_total", "Cost of the requests for a Remote, in the currency of the installation.", "model", "team", "by"),
	gauge("thaw_remote_spent_today", "What a Remote has cost since midnight UTC.", "model", "team"),
	gauge("thaw_remote_spend_limit", "The spendPerDay of a Remote that has one.", "model", "team"),
	gauge("thaw_team_spent_today", "What the requests of a team with a spendPerDay have cost since midnight UTC.", "team"),
	gauge("thaw_team_spend_limit", "The spendPerDay of a team that has one.", "team"),
	gauge("thaw_remote_circuit", "1 for the state that the circuit of a Remote is in: closed, open (it is failed) or half_open (one request tries it).", "model", "team", "state"),

	// activator/socket
	counter("thaw_speculation_total", "What sockets made ready ahead; kind is model or adapter, result hit (it was ready when it was asked for), late (it was asked for while it became ready), waste (it was not asked for) or refused.", "router", "team", "kind", "result"),
	counter("thaw_speculation_saved_seconds_total", "Seconds of cold starts and of loading adapters that passed before the submit.", "router", "team", "kind"),

	// activator/httpserver
	counter("thaw_connections_dropped_total", "Connections of clients that were refused because there were too many of their address (address), of all (total) or open files (descriptors), or were ended while idle to make room for another (idle).", "reason"),

	// platform/gateway
	counter("thaw_gateway_requests_total", "Requests by what they went to (model, function, service, controller, https, probe, nothing) and status; 0 is a client that left, or an answer that was broken off before its head.", "to", "code"),

	// platform/controlstream
	gauge("thaw_control_streams", "Links there are, by the kind of peer.", "kind"),
	gauge("thaw_activators_in_grace", "Activators whose link has ended and whose requests still count."),

	// platform/orchestrator
	counter("thaw_evictions_total", "Replicas stopped; reason is evicted (for another function), priority (the same, of one that only low requests use), idle, surplus, changed, asked, …", "reason"),
	counter("thaw_engine_restarts_total", "Engines that broke; cause is start, died or hung.", "cause"),
	counter("thaw_sleeps_total", "Replicas sent to sleep; reason is idle, evicted or priority (for another function) or time_slice.", "reason"),
	counter("thaw_sleep_wakeups_total", "Replicas woken from sleep; result is ready or failed.", "result"),
	counter("thaw_heartbeats_late_total", "Heartbeats that came twice, or after a newer one, and were passed over."),
	counter("thaw_thrash_total", "Functions that were evicted and missed soon after."),
	counter("thaw_stage_bytes_total", "Bytes of checkpoints brought from their sources.", "source", "result"),
	counter("thaw_prewarms_total", "Starts ahead; result is hit (READY when it was asked for), late (on its way), unused, evicted, no_room, over_budget, called_off, fetched or fetch_failed.", "result"),
	counter("thaw_prewarm_wasted_gpu_seconds_total", "GPU time held ahead of requests that did not come; by is history, or the key that sent the hint.", "team", "by"),
	counter("thaw_team_gpu_seconds_total", "GPU-seconds that replicas of a team have held.", "team"),
	counter("thaw_team_evictions_total", "Replicas that made way between teams; side is inflicted (on others, for this team's) or suffered.", "team", "side"),
	gauge("thaw_model_state", "1 for the state a function is in.", "model", "team", "state"),
	gauge("thaw_gpu_memory_bytes", "Memory of a GPU; kind is total or free.", "node", "gpu", "kind"),
	gauge("thaw_node_memory_bytes", "Host memory replicas may reserve; kind is total or used.", "node", "kind"),
	gauge("thaw_checkpoint_bytes", "Bytes of a checkpoint in the store of a node; tier is NVME_CACHED (all of them) or DRAM_CACHED (those in the page cache).", "node", "digest", "tier"),
	gauge("thaw_store_bytes", "Store of checkpoints; kind is total or used.", "node", "kind"),

	// The loaders of the nodes, as platform/orchestrator gets them with heartbeats. The
	// counters restart at 0 with the agent, as Prometheus expects.
	counter("thaw_loader_bytes_total", "Bytes brought into the store, by the source's scheme; peer is other nodes.", "node", "source"),
	gauge("thaw_loader_bytes_per_second", "Bytes a second that come into the store now.", "node"),
	gauge("thaw_loader_in_flight", "What is under way; kind is ranges or stagings.", "node", "kind"),
	counter("thaw_loader_stagings_total", "Stagings that ended; result is ready or failed.", "node", "result"),
	counter("thaw_loader_wasted_bytes_total", "Bytes that came twice or in vain.", "node"),
	counter("thaw_loader_resumed_bytes_total", "Bytes that were here when a staging began.", "node"),
	counter("thaw_loader_reused_bytes_total", "Bytes that another checkpoint had already.", "node"),
	counter("thaw_loader_peer_sent_bytes_total", "Bytes sent to other nodes.", "node"),
	counter("thaw_loader_requests_total", "Requests for ranges.", "node"),
	counter("thaw_loader_retries_total", "Requests for ranges that were tried again.", "node"),
	counter("thaw_loader_hedges_total", "Second requests for what a slow one had not brought.", "node"),
	counter("thaw_loader_throttles_total", "Answers that asked to be left alone.", "node"),
	counter("thaw_store_evictions_total", "Checkpoints and unfinished stagings that made room.", "node"),
	counter("thaw_store_evicted_bytes_total", "Bytes of those.", "node"),
	counter("thaw_store_quarantined_total", "Files taken out because they were not what they were.", "node"),

	// platform/nodeloader
	gauge("thaw_nodeloader_pods", "Pods connected to the node loader."),
	gauge("thaw_nodeloader_connected", "1 while the node loader is connected to a controller, else 0."),
	gauge("thaw_nodeloader_downloads", "Downloads in progress; kind is pod or prefetch (no pod waits for it).", "kind"),
	counter("thaw_nodeloader_downloads_total", "Finished downloads for pods; result is ready, failed or refused.", "result"),
	counter("thaw_nodeloader_prefetch_total", "Prefetches by result: used (a pod took the checkpoint) or wasted.", "result"),
	counter("thaw_nodeloader_bytes_total", "Bytes downloaded into the node's store, by source scheme; peer is other nodes.", "source"),
	gauge("thaw_nodeloader_store_bytes", "Size of the node's store; kind is total or used.", "kind"),

	// The programs.
	gauge("thaw_build_info", "1; the labels tell the build.", "version", "go"),
	gauge("thaw_controller_connected", "1 while this activator is connected to a controller, else 0."),
	counter("thaw_log_lines_dropped_total", "Lines of this program's log that were dropped: they could not be written, or not fast enough."),
	gauge("thaw_reconcile_queue", "PodAutoscalers that wait to be reconciled."),
}

// byName has the declarations and their descriptions for sampled values.
var byName = func() map[string]described {
	m := make(map[string]described, len(declarations))
	for _, d := range declarations {
		m[d.name] = described{d, prometheus.NewDesc(d.name, d.help, d.labels, nil)}
	}
	return m
}()

type described struct {
	metric
	desc *prometheus.Desc
}
