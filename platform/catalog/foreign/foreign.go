// Package foreign has the hints for error messages where a definition file uses a key or kind of
// another system (llama-swap, LiteLLM, Ollama, docker compose, KServe), or is no YAML: what to write
// for thaw in its place; it reads and converts no file.
package foreign

import (
	"slices"
	"strings"

	"github.com/thaw-dev/thaw/functions"
)

// renderedHint is for fields of a pod that a model file does not have.
const renderedHint = "thaw deploy --to knative --dry-run -o yaml prints the Knative Service, whose pod has the other fields: " +
	"see pods of models in deploy/docs/operations.md"

const remoteHint = "an API that runs already is a document of its own: kind: Remote with spec.url"

// entry is what a file of thaw has in place of keys of others, which are spelt as plain does and
// separated by blanks.
type entry struct{ hint, keys string }

// modelKeys are keys in models of other systems' files (llama-swap, LiteLLM, Ollama, docker compose,
// KServe, Knative, Ray, Helm charts), with what a model file has.
var modelKeys = []entry{
	{"did you mean source?",
		"model repo uri storageuri modelid modelpath hfrepo from repository modeluri path modelsource weightspath checkpoint " +
			"hfmodelid storageuris modeluris"},
	{"did you mean source? " + remoteHint, "url"},
	{"its program and arguments are engine: command with args: [PROGRAM, --port, \"{port}\"]",
		"command cmd entrypoint exec run argv containers"},
	{"thaw ends the engine's processes itself, after deadlines.drain", "cmdstop"},
	{"thaw chooses the port: write {port} in args, such as --port={port}", "port ports containerport host"},
	{"thaw finds the engine by its own port: write {port} in args; " + remoteHint, "proxy"},
	{"did you mean scale: {min: N, max: N}?", "replicas replicacount"},
	{"did you mean scale: {min: N, max: N, target: N, idle: 5m}?", "autoscaling"},
	{"did you mean scale: {min: N}?", "minreplicas minscale minworkers mininstances preload persistent hooks"},
	{"did you mean scale: {max: N}?", "maxreplicas maxscale maxworkers maxinstances workers"},
	{"did you mean scale: {idle: 5m}?", "ttl keepalive idle idletimeout scaledowndelay scaledowndelayseconds unloadafter"},
	{"did you mean scale: {min: 0, idle: 5m}? That is the default", "scaletozero"},
	{"did you mean scale: {target: N}?", "concurrency concurrencylimit containerconcurrency targetrequests parallel maxconcurrency"},
	{"did you mean deadlines: {start: 10m}?", "healthchecktimeout startuptimeout startupprobe"},
	{"did you mean deadlines: {start: 10m, firstToken: 2m}?", "timeout"},
	{"did you mean health? It is a path, such as /health", "healthcheck readinessprobe livenessprobe"},
	{"did you mean health?", "checkendpoint"},
	{"gpus, memory and cpu stand in resources themselves", "limits requests"},
	{"did you mean resources: {gpus: N}?", "gpus gpu numgpus gpucount nvidia.com/gpu accelerator devices deploy"},
	{"did you mean resources: {gpuMemory: 20Gi}?", "gpumemory vram"},
	{"did you mean resources: {memory: 16Gi}?", "memory ram"},
	{"did you mean resources: {cpu: N}?", "cpu cpus"},
	{"it belongs to the source: hf://ORG/REPO@REVISION", "revision branch"},
	{"a model file holds no secrets: credentials come from the environment of the server", "hftoken token secret secrets credentials"},
	{"write it as a comment: # …", "description"},
	{"take the file away, or thaw rm NAME", "enabled disabled"},
	{"did you mean engine? For a RuntimeClass: pod: {runtimeClassName: NAME}", "runtime"},
	{"did you mean engine?", "backend framework modelformat"},
	{"an engine's own options go into args, such as args: [--max-model-len, \"8192\"]",
		"maxmodellen contextlength context contextsize dtype quantization ctxsize numctx nctx ngpulayers ngl tensorparallelsize " +
			"tensorparallel gpumemoryutilization kvcachedtype chattemplate extraargs engineargs vllmconfig enginekwargs flags modelkwargs"},
	{"the client sends what it samples with; an engine's defaults go into args",
		"parameters temperature topp system template stop generationconfig filters"},
	{"did you mean env? It is NAME: VALUE for each", "environment envs envfile envvars"},
	{"engine says which program runs; on Kubernetes thaw deploy --image ENGINE=IMAGE names its image", "image build"},
	{"weights come from source: a folder or a bucket; nothing is mounted", "volumes volumemounts"},
	{"thaw keeps weights below its own --data", "cachedir"},
	{"thaw starts an engine again when a request comes", "restart"},
	{"each model starts when a request comes for it", "dependson"},
	{"the name that clients ask for is metadata.name; a Router gives it others", "name modelname servedmodelname aliases alias"},
	{remoteHint, "litellmparams apibase baseurl"},
	{"a model takes the keys of thaw itself (thaw keys create); " + remoteHint, "apikey"},
	{"a Router names several targets: kind: Router", "fallbacks"},
	{"thaw itself decides which models share the GPUs (placement)", "groups swap exclusive"},
	{"thaw lists every model; a key sees its team's", "unlisted"},
	{"did you mean adapters? Each is {name: NAME, source: …}", "loramodules loras adapter"},
	{"did you mean pod: {serviceAccountName: NAME}?", "serviceaccount serviceaccountname"},
	{"did you mean pod: {nodeSelector: {…}}?", "nodeselector"},
	{"did you mean pod: {nodeSelector: {…}}? " + renderedHint, "affinity"},
	{renderedHint, "topologyspreadconstraints initcontainers sidecars envfrom hostaliases dnsconfig dnspolicy schedulername securitycontext " +
		"podsecuritycontext lifecycle"},
	{"did you mean pod: {annotations: {…}}?", "annotations podannotations"},
	{"did you mean metadata: {labels: {…}}? Pods have them too", "labels podlabels"},
	{"GPUs of dynamic resource allocation cannot be asked for: gpus: N is nvidia.com/gpu", "resourceclaims claims deviceclassname"},
	{"engines have /dev/shm, bounded by resources.memory alone", "shmsize shm sharedmemory"},
	{"did you mean deadlines: {drain: 30s}? Kubernetes waits as long as a request may take", "terminationgraceperiodseconds"},
	{"Kubernetes decides by the image's tag: latest is pulled anew", "imagepullpolicy pullpolicy"},
	{"a replica runs on one node: gpus: N is of one", "nodes nnodes numnodes multinode workerspec leaderworkertemplate pipelineparallelsize"},
	{"did you mean pod: {tolerations: […]}?", "tolerations"},
	{"did you mean pod: {imagePullSecrets: [{name: NAME}]}?", "imagepullsecrets"},
	{"did you mean pod: {runtimeClassName: NAME}?", "runtimeclassname"},
	{"did you mean pod: {priorityClassName: NAME}?", "priorityclassname"},
	{"source, engine, args and resources stand in spec themselves", "predictor"},
	{"did you mean folder?", "workingdir cwd"},
}

// remoteKeys are keys in APIs of others.
var remoteKeys = []entry{
	{"did you mean url?", "apibase baseurl endpoint apiurl host proxy"},
	{"did you mean model? The name that clients ask for is metadata.name", "modelname"},
	{"did you mean model?", "upstreammodel id"},
	{"every Remote speaks OpenAI's API; url says where", "provider type"},
	{"url, model and keyFrom stand in spec themselves", "litellmparams"},
	{"did you mean limits: {requestsPerMinute: N}?", "rpm"},
	{"did you mean limits: {tokensPerMinute: N}?", "tpm"},
	{"did you mean limits: {spendPerDay: N}?", "maxbudget"},
	{"did you mean limits: {concurrent: N}?", "maxparallelrequests"},
	{"did you mean timeouts: {firstToken: 60s}?", "timeout requesttimeout"},
	{"did you mean timeouts: {idle: 2m}?", "streamtimeout"},
	{"did you mean price: {input: N, output: N}? Per million tokens", "inputcostpertoken outputcostpertoken"},
	{"thaw sends the key of keyFrom as Authorization, and no fields of your own", "headers extraheaders"},
}

// routerKeys are keys by which others route.
var routerKeys = []entry{
	{"did you mean rules: [{name: all, to: [NAME]}]?", "models targets modellist"},
	{"did you mean rules?", "routes"},
	{"the last rule has no when: {name: all, to: [NAME]}", "default"},
	{"a rule's to names the next ones too: to: [FIRST, SECOND]", "fallbacks fallback"},
	{"a rule's to is in order of preference; objective says what a target must meet", "routingstrategy strategy"},
	{"a rule's to is in order of preference", "weight"},
	{"did you mean retry?", "numretries"},
}

// compositionKeys and teamKeys are keys by which others name the members and limits.
var compositionKeys = []entry{
	{"did you mean members?", "models targets agents functions"},
	{"did you mean coordinator?", "judge synthesizer aggregator leader"},
	{"did you mean pattern?", "type strategy mode"},
	{"did you mean patience or budget: {time: 5m}?", "timeout"},
}

var teamKeys = []entry{
	{"did you mean limits: {requestsPerMinute: N}?", "rpm rpmlimit"},
	{"did you mean limits: {tokensPerMinute: N}?", "tpm tpmlimit"},
	{"did you mean limits: {spendPerDay: N}?", "maxbudget budget"},
	{"did you mean limits: {concurrent: N}?", "maxparallelrequests concurrency"},
	{"did you mean guaranteed?", "min request requests"},
	{"a key belongs to a team: thaw keys create --team NAME", "keys members users"},
	{"a function belongs to the team that its metadata.namespace names", "models functions"},
}

// plain is a key in small letters without - and _.
func plain(key string) string {
	return strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(key))
}

// SuggestKey is the hint about a key of another system's file; "" for any other.
func SuggestKey(kind, key string) string {
	if kind == functions.KindModel && strings.HasPrefix(key, "nvidia.com/mig-") {
		return "slices of a GPU (MIG) are not supported: gpus: 1 is a whole one, and gpuMemory chooses its size"
	}
	list := map[string][]entry{functions.KindModel: modelKeys, functions.KindRemote: remoteKeys, functions.KindRouter: routerKeys,
		functions.KindComposition: compositionKeys, functions.KindTeam: teamKeys}
	for _, f := range list[kind] {
		if slices.Contains(strings.Fields(f.keys), plain(key)) {
			return f.hint
		}
	}
	return ""
}

// OwnFile says how to come by a model file.
const OwnFile = "thaw init SOURCE writes a model file"

// kindsOfOthers are kinds of Kubernetes objects that serve models.
const kindsOfOthers = "InferenceService LLMInferenceService ServingRuntime Deployment StatefulSet Pod Service RayService " +
	"DynamoGraphDeployment NIMService SeldonDeployment ModelDeployment"

// SuggestKind is the hint about an unknown kind, or about a document without one by the keys at
// its top; "" where they are of no other system that is known.
func SuggestKind(kind string, keys []string) string {
	switch {
	case kind == "List":
		return "write its items as documents with --- between them"
	case strings.HasPrefix(kind, "Function"):
		return "that is a server's answer; thaw describe NAME says where the model file is"
	case kind != "" && slices.Contains(strings.Fields(kindsOfOthers), kind):
		return "thaw makes such objects itself from kind: Model; " + OwnFile
	case kind != "":
		return ""
	}
	for _, key := range keys {
		switch plain(key) {
		case "modellist", "litellmsettings":
			return "a file of LiteLLM? Each of model_list is a document here: kind: Remote with url, model and keyFrom, or kind: Model"
		case "models":
			return "a file of llama-swap? Each model is a document here: kind: Model with engine: command and args: [PROGRAM, --port, \"{port}\"]"
		case "services":
			return "a file of docker compose? Each engine is a document here: kind: Model; " + OwnFile
		case "addr", "data", "functions":
			return "settings of the server are read by thaw serve --config FILE; " + OwnFile
		case "from", "parameter", "architectures":
			return "that is no model file; " + OwnFile
		}
	}
	return ""
}
