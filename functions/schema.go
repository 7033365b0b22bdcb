package functions

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

//go:generate go test -run TestSchemaFile -update .

// described has the description of every key of the files. A key without a line, or
// a line without a key, fails the tests.
var described = map[string]string{
	"Model":                              "A model: weights, the engine that serves them, and how it scales.",
	"Model.apiVersion":                   "The version of this format.",
	"Model.kind":                         "What this document is.",
	"Model.metadata":                     "Names the model.",
	"Model.metadata.name":                "What a client asks for in the OpenAI field model. A DNS label.",
	"Model.metadata.namespace":           "The team that owns the model. A DNS label.",
	"Model.metadata.labels":              "Free text for people and tools.",
	"Model.spec":                         "What to serve and how.",
	"Model.spec.source":                  "Where the weights are: a path from this file, file:///abs, az://ACCOUNT/CONTAINER/PREFIX, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://ORG/REPO[@REV], the https form of a blob folder, or https://HOST/FOLDER with a list of its files.",
	"Model.spec.files":                   "Files of the source that are staged beside weights (safetensors, GGUF), configs, tokenizers and chat templates: patterns of names below its folder, where * stays within one folder. Such as custom/*.py, which may run on the machine.",
	"Model.spec.engine":                  "The program that serves the weights.",
	"Model.spec.args":                    "The engine's own arguments; for command the whole argv. {port}, {model} and {name} are filled in.",
	"Model.spec.env":                     "Added to the engine's environment.",
	"Model.spec.health":                  "Where a command engine answers its health; /health unless said.",
	"Model.spec.serves":                  "The endpoints that the engine answers; the first is asked for READY. Left out: the first of this order that answers.",
	"Model.spec.serves[]":                "One endpoint.",
	"Model.spec.probe":                   "How a command engine shows that it is ready: auto asks an endpoint of serves, none trusts its health alone, and a path with a body is a POST that it answers with 2xx.",
	"Model.spec.probe.path":              "Where the request goes.",
	"Model.spec.probe.body":              "The JSON of the request.",
	"Model.spec.adapters":                "LoRA adapters, asked for as NAME:ADAPTER.",
	"Model.spec.adapters[].name":         "The name of the adapter. A DNS label.",
	"Model.spec.adapters[].source":       "Where the adapter's weights are, spelled as a model's source.",
	"Model.spec.adapters[].files":        "Files of its source that are staged beside the usual ones, as spec.files.",
	"Model.spec.adapters[].rank":         "The rank of the adapter, where the engine wants to know it.",
	"Model.spec.resources":               "What one replica takes.",
	"Model.spec.resources.gpus":          "How many GPUs.",
	"Model.spec.resources.gpuMemory":     "Memory on each GPU, such as 40Gi.",
	"Model.spec.resources.memory":        "The host's memory, such as 4Gi.",
	"Model.spec.resources.cpu":           "Processors that are set aside for it on Kubernetes, such as 2 or 500m.",
	"Model.spec.scale":                   "How many replicas.",
	"Model.spec.scale.min":               "Replicas that stay, asked for or not.",
	"Model.spec.scale.max":               "Replicas at most.",
	"Model.spec.scale.target":            "Requests one replica is meant to serve at once.",
	"Model.spec.scale.idle":              "How long a replica lives after its last request's end.",
	"Model.spec.queue":                   "Bounds of the requests held while the model is not ready.",
	"Model.spec.queue.requests":          "How many.",
	"Model.spec.queue.bytes":             "How many bytes of bodies together.",
	"Model.spec.queue.wait":              "How long each.",
	"Model.spec.deadlines":               "Bounds of the stages of a replica's life.",
	"Model.spec.deadlines.stage":         "For the weights to arrive.",
	"Model.spec.deadlines.start":         "From the engine's process to its first generated token.",
	"Model.spec.deadlines.firstToken":    "For a request's first token.",
	"Model.spec.deadlines.hang":          "How long tokens may stop flowing before the replica is suspected.",
	"Model.spec.deadlines.drain":         "For requests under way when a replica is told to end.",
	"Team":                               "A team: a namespace, its GPUs and its limits.",
	"Team.apiVersion":                    "The version of this format.",
	"Team.kind":                          "What this document is.",
	"Team.metadata":                      "Names the team.",
	"Team.metadata.name":                 "The name of the team, which is the namespace of its models. A DNS label.",
	"Team.metadata.namespace":            "The same as name, or left out.",
	"Team.metadata.labels":               "Free text for people and tools.",
	"Team.spec":                          "What the team may take.",
	"Team.spec.gpus":                     "The GPUs of the team.",
	"Team.spec.gpus.guaranteed":          "GPUs the team is owed whenever it asks.",
	"Team.spec.gpus.max":                 "GPUs the team may hold at most; 0 means no limit.",
	"Team.spec.limits":                   "Limits of the team; absent or 0 means no limit.",
	"Team.spec.limits.concurrent":        "Requests at once.",
	"Team.spec.limits.heldRequests":      "Requests held at once, for models that are cold or busy.",
	"Team.spec.limits.requestsPerMinute": "Requests a minute.",
	"Team.spec.limits.tokensPerMinute":   "Tokens a minute.",
	"Team.spec.limits.coldStartsPerHour": "Cold starts an hour.",
	"Team.spec.limits.gpuSecondsPerDay":  "Seconds of GPU a day.",
	"Team.spec.limits.storeBytes":        "Bytes of checkpoints the team may keep in the store.",

	"Model.spec.pod":                         "What the model's pod says to a Kubernetes cluster beside what it takes, spelled as in a pod; elsewhere it is not read.",
	"Model.spec.pod.nodeSelector":            "Labels of the nodes it may have. Knative has to allow it: kubernetes.podspec-nodeselector.",
	"Model.spec.pod.tolerations":             "Taints of nodes that it may have all the same. Knative has to allow it: kubernetes.podspec-tolerations.",
	"Model.spec.pod.tolerations[].key":       "The taint's key; without one, and with operator Exists, every taint.",
	"Model.spec.pod.tolerations[].operator":  "Equal, which is meant where it is left out, or Exists.",
	"Model.spec.pod.tolerations[].value":     "The taint's value, with Equal.",
	"Model.spec.pod.tolerations[].effect":    "The taint's effect; every one where it is left out.",
	"Model.spec.pod.runtimeClassName":        "The runtime that makes its containers, such as nvidia. Knative has to allow it: kubernetes.podspec-runtimeclassname.",
	"Model.spec.pod.imagePullSecrets":        "Secrets of the model's namespace with which its images are pulled.",
	"Model.spec.pod.imagePullSecrets[].name": "The name of the Secret.",
	"Model.spec.pod.serviceAccountName":      "The account of the model's namespace that it runs as. It gets no token of it.",
	"Model.spec.pod.priorityClassName":       "The class that says which pods make way for it where nodes are full. Knative has to allow it: kubernetes.podspec-priorityclassname.",
}

// Schema is the JSON schema of the files, made from the types: indented, with
// a newline at its end.
func Schema() []byte {
	model := schemaOf(reflect.TypeFor[Model](), "Model", reflect.ValueOf(*NewModel()))
	team := schemaOf(reflect.TypeFor[Team](), "Team", reflect.ValueOf(Team{APIVersion: APIVersion, Kind: KindTeam}))
	require(model, "apiVersion", "kind", "metadata", "spec")
	require(team, "apiVersion", "kind", "metadata")
	constant(model, "apiVersion", APIVersion)
	constant(model, "kind", KindModel)
	constant(team, "apiVersion", APIVersion)
	constant(team, "kind", KindTeam)
	require(property(model, "metadata"), "name")
	require(property(team, "metadata"), "name")
	require(property(model, "spec"), "engine")
	doc := map[string]any{
		"$schema":     "https://json-schema.org/draft/2020-12/schema",
		"$id":         "https://thaw.dev/schema/v1.json",
		"title":       "thaw: models and teams",
		"description": "One document of a file that thaw serve --functions reads. A file may hold several, parted by ---.",
		"oneOf":       []any{map[string]any{"$ref": "#/$defs/Model"}, map[string]any{"$ref": "#/$defs/Team"}},
		"$defs":       map[string]any{"Model": model, "Team": team},
	}
	out, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		panic(err) // only maps, strings and numbers are in it
	}
	return append(out, '\n')
}

func require(s map[string]any, names ...string) { s["required"] = names }

func property(s map[string]any, name string) map[string]any {
	return s["properties"].(map[string]any)[name].(map[string]any)
}

func constant(s map[string]any, name, value string) {
	p := property(s, name)
	p["const"] = value
	delete(p, "default")
}

const (
	bytesPattern    = `^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$`
	cpuPattern      = `^([0-9]+(\.[0-9]+)?|[0-9]+m)$`
	durationPattern = `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`
)

// oneOf are the words that a text may be.
var oneOf = map[string][]string{
	"Model.spec.pod.tolerations[].operator": {TolerationEqual, TolerationExists},
	"Model.spec.serves[]":                   endpointNames(),
	"Model.spec.pod.tolerations[].effect":   {TaintNoSchedule, TaintPreferNoSchedule, TaintNoExecute},
}

// schemaOf describes one type. def holds the defaults, where there are any.
func schemaOf(t reflect.Type, path string, def reflect.Value) map[string]any {
	s := map[string]any{}
	if d := described[path]; d != "" {
		s["description"] = d
	}
	switch t {
	case reflect.TypeFor[Bytes]():
		s["type"], s["pattern"], s["minimum"] = []string{"string", "integer"}, bytesPattern, 0
		if def.IsValid() && !def.IsZero() {
			s["default"] = def.Interface().(Bytes).String() // as a person writes it
		}
		return s
	case reflect.TypeFor[CPU]():
		s["type"], s["pattern"], s["minimum"] = []string{"string", "number"}, cpuPattern, 0
		return s
	case reflect.TypeFor[Duration]():
		s["type"], s["pattern"] = "string", durationPattern
		return withDefault(s, def)
	case reflect.TypeFor[Engine]():
		s["type"], s["enum"] = "string", Engines
		return s
	}
	switch t.Kind() {
	case reflect.Struct:
		s["type"], s["additionalProperties"] = "object", false
		props := map[string]any{}
		for f := range t.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "-" {
				continue
			}
			var d reflect.Value
			if def.IsValid() {
				d = def.FieldByIndex(f.Index)
			}
			props[name] = schemaOf(f.Type, path+"."+name, d)
		}
		s["properties"] = props
		switch path {
		case "Model.spec.adapters[]":
			require(s, "name", "source")
		case "Model.spec.pod.imagePullSecrets[]":
			require(s, "name")
		case "Model.spec.probe":
			s["type"], s["pattern"] = []string{"string", "object"}, "^("+probeAuto+"|"+probeNone+")$"
			require(s, "path", "body")
		}
	case reflect.Slice:
		s["type"] = "array"
		s["items"] = schemaOf(t.Elem(), path+"[]", reflect.Value{})
	case reflect.Interface: // any JSON
	case reflect.Map:
		s["type"] = "object"
		s["additionalProperties"] = schemaOf(t.Elem(), path+"{}", reflect.Value{})
	case reflect.String:
		s["type"] = "string"
		if words := oneOf[path]; words != nil {
			s["enum"] = words
		} else if path != "Model.spec.pod.imagePullSecrets[].name" && slices.Contains([]string{".name", ".namespace"}, path[strings.LastIndexByte(path, '.'):]) {
			s["pattern"] = `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
		}
		return withDefault(s, def)
	case reflect.Int:
		s["type"], s["minimum"] = "integer", 0
		if minimum := map[string]int{"Model.spec.scale.max": 1, "Model.spec.scale.target": 1, "Model.spec.queue.requests": 1}[path]; minimum > 0 {
			s["minimum"] = minimum
		}
		return withDefault(s, def)
	default:
		panic(fmt.Sprintf("functions: no schema for %s at %s", t, path))
	}
	return s
}

// withDefault adds the default unless it is "" or 0, which mean absence.
func withDefault(s map[string]any, def reflect.Value) map[string]any {
	if def.IsValid() && !def.IsZero() {
		s["default"] = def.Interface()
	}
	return s
}
