package knative

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"knative.dev/serving/pkg/apis/autoscaling"
	"knative.dev/serving/pkg/apis/config"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	asconfig "knative.dev/serving/pkg/autoscaler/config/autoscalerconfig"
	"sigs.k8s.io/yaml"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/catalog"
)

var update = flag.Bool("update", false, "write what is rendered as what is wanted")

const thawImage = "example.com/thaw:test"

// models decodes the models of a text.
func models(t *testing.T, file, text string) []*functions.Model {
	t.Helper()
	docs, err := catalog.Decode(file, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var list []*functions.Model
	for _, d := range docs {
		list = append(list, d.Model)
	}
	return list
}

// asked returns Knative's configuration with the features of a service, except less.
func asked(s *servingv1.Service, less string) context.Context {
	c := &config.Config{}
	c.Defaults, _ = config.NewDefaultsConfigFromMap(nil)
	on := map[string]string{}
	for _, f := range Needs(s) {
		if on[f.Key] = f.Value; f.Key == less {
			on[f.Key] = map[string]string{"enabled": "disabled", "true": "false"}[f.Value]
		}
	}
	c.Features, _ = config.NewFeaturesConfigFromMap(on)
	c.Autoscaler = &asconfig.Config{AllowZeroInitialScale: on["allow-zero-initial-scale"] == "true"}
	return config.ToContext(context.Background(), c)
}

// TestRender compares rendered Services with golden files and validates them with
// Knative's own code.
func TestRender(t *testing.T) {
	files, err := filepath.Glob("testdata/render/*.model.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d models to render, %v", len(files), err)
	}
	given := map[string]bool{"Folder": true, "Cache": true, "Price": true} // which Render refuses
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".model.yaml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var services []*servingv1.Service
			for _, m := range models(t, file, string(text)) {
				s, err := Render(m, Settings{Thaw: thawImage, Images: map[functions.Engine]string{functions.EngineCommand: "example.com/own:1", functions.EngineLlamaCpp: "example.com/llama:1"}})
				if err != nil {
					t.Fatal(err)
				}
				services = append(services, s)
			}
			got, err := ObjectsYAML(services...)
			if err != nil {
				t.Fatal(err)
			}
			want := strings.TrimSuffix(file, ".model.yaml") + ".service.yaml"
			if *update {
				if err := os.WriteFile(want, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if golden, _ := os.ReadFile(want); string(golden) != string(got) {
				t.Errorf("%s is not what is rendered (-update writes it):\n%s", want, got)
			}
			for i, s := range services {
				ctx := asked(s, "")
				s = s.DeepCopy()
				s.SetDefaults(ctx)
				if err := s.Validate(ctx); err != nil {
					t.Errorf("Knative refuses it: %v", err)
				}
				m := models(t, file, string(text))[i]
				for f, value := range reflect.ValueOf(m.Spec).Fields() {
					given[f.Name] = given[f.Name] || !value.IsZero()
				}
				roundTrip(t, m, s)
			}
		})
	}
	for f := range reflect.TypeFor[functions.ModelSpec]().Fields() {
		if !given[f.Name] {
			t.Errorf("no model here has spec.%s, which pods need as well", f.Name)
		}
	}
}

// roundTrip checks that the shim and the controller decode the original model from what
// Kubernetes hands them.
func roundTrip(t *testing.T, m *functions.Model, s *servingv1.Service) {
	t.Helper()
	var whole functions.Model
	if err := yaml.Unmarshal([]byte(s.Annotations[ModelAnnotation]), &whole); err != nil {
		t.Fatal(err)
	}
	same := func(what string, got, want *functions.Model) {
		t.Helper()
		a, _ := catalog.EncodeYAML(got)
		b, _ := catalog.EncodeYAML(want)
		if string(a) != string(b) {
			t.Errorf("%s:\n%s\nwant\n%s", what, a, b)
		}
	}
	same("the annotation", &whole, m)
	var text string
	for _, e := range s.Spec.Template.Spec.Containers[0].Env {
		if e.Name == "THAW_MODEL" {
			text = expand(e.Value)
		}
	}
	started := models(t, "THAW_MODEL", text)[0]
	want := *m
	want.Metadata.Labels, want.Spec.Pod = nil, functions.Pod{}
	want.Spec.Scale, want.Spec.Queue = functions.Defaults().Scale, functions.Defaults().Queue
	same("THAW_MODEL", started, &want)
}

// expand expands a value as a kubelet does: $(NAME) is a variable, $$ is a $.
func expand(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '$' && i+1 < len(s) {
			switch s[i+1] {
			case '$':
				i++
			case '(':
				return "(a variable of the pod)"
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// TestRevisionFields: a change that only the controller reads makes no new
// revision, which would start new pods.
func TestRevisionFields(t *testing.T) {
	const base = "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: a}\nspec: {source: 'hf://a/b', engine: vllm%s}\n"
	render := func(more string) *servingv1.Service {
		s, err := Render(models(t, "a.yaml", strings.Replace(base, "%s", more, 1))[0], Settings{Thaw: thawImage})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	text := func(s *servingv1.Service) string {
		b, _ := yaml.Marshal(s.Spec.Template)
		return string(b)
	}
	for _, x := range []struct {
		more string
		same bool
	}{
		{", queue: {requests: 7, bytes: 1Mi}", true},
		{", scale: {idle: 2h}", true},
		{", scale: {idle: 2m}", true},
		{", scale: {max: 3}", false},
		{", args: [--seed, '1']", false},
		{", env: {A: b}", false},
		{", resources: {gpus: 1}", false},
	} {
		if got := text(render("")) == text(render(x.more)); got != x.same {
			t.Errorf("%s: the revision stays is %v, want %v", x.more, got, x.same)
		}
	}
}

// TestRefused: each unsupported setting is refused with a hint.
func TestRefused(t *testing.T) {
	for _, x := range []struct {
		name, meta, spec string
		settings         Settings
		want             []string
	}{
		{name: "a folder without its scheme", spec: "source: /mnt/models/a, engine: ember", want: []string{"(loader.folders of the chart) is file:///PATH"}},
		{name: "a folder", spec: "source: ./tiny, engine: ember", want: []string{"m.yaml:1: spec.source: ./tiny is a folder of this machine, and no pod can read it (upload it and name it as az://"}},
		{name: "an absolute folder", spec: "source: /w, engine: vllm", want: []string{"spec.source: /w is a folder"}},
		{name: "an adapter's folder", spec: "source: 'hf://a/b', engine: vllm, adapters: [{name: x, source: 'hf://a/c'}, {name: y, source: ./y}]", want: []string{"spec.adapters[1].source: ./y is a folder"}},
		{name: "a command without an image", spec: "engine: command, args: [serve, '{port}']", want: []string{"spec.engine: there is no image to run engine command from (--image command=IMAGE"}},
		{name: "no thaw", spec: "source: 'hf://a/b', engine: vllm", want: []string{"thaw's image is not set, and every model's pod needs it (--thaw-image IMAGE)"}},
		{name: "no image", spec: "source: 'hf://a/b', engine: vllm", settings: Settings{Thaw: "R/x:1", Images: map[functions.Engine]string{functions.EngineVLLM: "my image"}}, want: []string{`"R/x:1" names no image: want [HOST[:PORT]/]PATH[:TAG][@sha256:…], the path in lower-case letters (--thaw-image IMAGE)`, `"my image" names no image`}},
		{name: "a digit first", meta: "name: 7b", spec: "source: 'hf://a/b', engine: vllm", want: []string{`metadata.name: "7b" cannot be the name of a service of Kubernetes (take one that begins with a letter)`}},
		{name: "the cluster's namespace", meta: "name: a, namespace: kube-system", spec: "source: 'hf://a/b', engine: vllm", want: []string{`"kube-system" belongs to the cluster itself`}},
		{name: "two namespaces", meta: "name: a, namespace: ml", spec: "source: 'hf://a/b', engine: vllm", settings: Settings{Thaw: thawImage, Namespace: "other"}, want: []string{`the file says "ml", --namespace "other"`}},
		{name: "no namespace", spec: "source: 'hf://a/b', engine: vllm", settings: Settings{Thaw: thawImage, Namespace: "No"}, want: []string{`"No" cannot be a namespace`}},
		{name: "a label's key", meta: "name: a, labels: {'a b': c}", spec: "source: 'hf://a/b', engine: vllm", want: []string{`metadata.labels: "a b" cannot be the key`}},
		{name: "a label's value", meta: "name: a, labels: {a: b c}", spec: "source: 'hf://a/b', engine: vllm", want: []string{`metadata.labels: a: "b c" cannot be the value`}},
		{name: "a label of ours", meta: "name: a, labels: {thaw.dev/model: b}", spec: "source: 'hf://a/b', engine: vllm", want: []string{"metadata.labels: thaw.dev/model is set by thaw"}},
		{name: "Knative's variable", spec: "source: 'hf://a/b', engine: vllm, env: {PORT: '1', K_SERVICE: a}", want: []string{"spec.env.K_SERVICE: Knative sets this variable itself", "spec.env.PORT:"}},
		{name: "too long", spec: "source: 'hf://a/b', engine: vllm, env: {A: " + strings.Repeat("a", maxDocument) + "}", want: []string{"a service carries at most 32768"}},
		{name: "a relative store", spec: "source: 'hf://a/b', engine: vllm", settings: Settings{Thaw: thawImage, Store: "store"}, want: []string{`the store "store" is not a clean absolute path`}},
		{name: "the whole disk", spec: "source: 'hf://a/b', engine: vllm", settings: Settings{Thaw: thawImage, Store: "/"}, want: []string{`the store "/" is not a clean absolute path`}},
		{name: "a way up", spec: "source: 'hf://a/b', engine: vllm", settings: Settings{Thaw: thawImage, Store: "/a/../etc"}, want: []string{`the store "/a/../etc"`}},
		{name: "half a second", spec: "source: 'hf://a/b', engine: vllm", settings: Settings{Thaw: thawImage, Timeout: 1500 * time.Millisecond}, want: []string{"1.5s is no time for a request"}},
		{name: "a price and a cache", spec: "source: 'hf://a/b', engine: vllm, price: {input: 1}, cache: {exact: {ttl: 1m}}", want: []string{"spec.cache: not on Kubernetes yet", "spec.price: not on Kubernetes yet"}},
		{name: "all at once", meta: "name: 7b", spec: "source: ./a, engine: vllm", want: []string{"metadata.name:", "spec.source:"}},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.meta == "" {
				x.meta = "name: a"
			}
			if x.settings.Thaw == "" && x.name != "no thaw" {
				x.settings.Thaw = thawImage
			}
			m := models(t, "m.yaml", "apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {"+x.meta+"}\nspec: {"+x.spec+"}\n")[0]
			s, err := Render(m, x.settings)
			if err == nil || s != nil {
				t.Fatal("it was rendered")
			}
			for _, w := range x.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
			if n := len(strings.Split(err.Error(), "\n")); n != len(x.want) {
				t.Errorf("%d problems told, want %d: %v", n, len(x.want), err)
			}
		})
	}
}

// TestFeatures: Needs lists exactly the features that Knative requires. Without any one
// of them its webhook refuses the service, and the refusal leads to the command that
// turns that feature on.
func TestFeatures(t *testing.T) {
	text, err := os.ReadFile("testdata/render/pool.model.yaml")
	if err != nil {
		t.Fatal(err)
	}
	full, err := Render(models(t, "pool", string(text))[0], Settings{Thaw: thawImage})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(Needs(full)); n != len(Features)+len(PodFeatures) {
		t.Fatalf("%d features", n)
	}
	for _, f := range Needs(full) {
		s := full.DeepCopy()
		ctx := asked(s, f.Key)
		s.SetDefaults(ctx)
		err := s.Validate(ctx)
		if err == nil {
			t.Errorf("Knative takes it without %s", f.Key)
			continue
		}
		if got := refusedFeatures(err.Error()); len(got) != 1 || got[0].Key != f.Key {
			t.Errorf("without %s Knative says %q, taken for %v", f.Key, err, got)
		}
		if want := `-p '{"data":{"` + f.Key + `":"` + f.Value + `"}}'`; !strings.Contains(f.Patch(), want) {
			t.Errorf("%s has no %s", f.Patch(), want)
		}
	}
	plain, err := Render(models(t, "a",
		"apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: a}\nspec: {source: 'hf://a/b', engine: vllm}\n")[0], Settings{Thaw: thawImage})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(Needs(plain)); n != len(Features) {
		t.Errorf("a model without a pod of its own needs %d features", n)
	}
	for _, x := range []struct {
		feature Feature
		data    map[string]string
		on      bool
	}{
		{Features[0], nil, false}, {Features[2], nil, true}, {Features[0], map[string]string{Features[0].Key: " Enabled "}, true},
		{Features[1], map[string]string{Features[1].Key: "allowed"}, false}, {PodFeatures[0], map[string]string{PodFeatures[0].Key: "Allowed"}, true}, {PodFeatures[0], map[string]string{PodFeatures[0].Key: "disabled"}, false},
	} {
		if _, on := x.feature.On(x.data); on != x.on {
			t.Errorf("%s with %v is %v", x.feature.Key, x.data, on)
		}
	}
}

// TestPodDefaults: a namespace's spec.pod applies to models with GPUs; their own wins.
func TestPodDefaults(t *testing.T) {
	pod := functions.Pod{NodeSelector: map[string]string{"pool": "gpu", "zone": "1"}, Tolerations: []functions.Toleration{{Key: "sku", Operator: "Exists"}}, RuntimeClassName: "nvidia"}
	spec := func(text string) corev1.PodSpec {
		t.Helper()
		s, err := Render(models(t, "a",
			"apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: a}\nspec: {source: 'hf://a/b', engine: vllm, "+text+"}\n")[0],
			Settings{Thaw: thawImage, Pod: pod})
		if err != nil {
			t.Fatal(err)
		}
		return s.Spec.Template.Spec.PodSpec
	}
	got := spec("resources: {gpus: 1}, pod: {nodeSelector: {zone: '2'}}")
	if got.NodeSelector["pool"] != "gpu" || got.NodeSelector["zone"] != "2" || len(got.Tolerations) != 1 || got.Tolerations[0].Key != "sku" ||
		*got.RuntimeClassName != "nvidia" {
		t.Errorf("%+v", got)
	}
	if got := spec("pod: {nodeSelector: {zone: '2'}}"); len(got.NodeSelector) != 1 || got.Tolerations != nil || got.RuntimeClassName != nil {
		t.Errorf("without GPUs: %+v", got)
	}
	if len(pod.NodeSelector) != 2 || pod.NodeSelector["zone"] != "1" {
		t.Errorf("the namespace's own were changed: %v", pod)
	}
}

// TestCPU: CPU is only a request, never a limit.
func TestCPU(t *testing.T) {
	for _, x := range []struct{ engine, resources, want string }{
		{"vllm", "{gpus: 1}", "1"}, {"vllm", "{gpus: 4}", "4"}, {"sglang", "{gpus: 2, cpu: 500m}", "500m"}, {"vllm", "{}", "500m"}, {"llamacpp", "{}", "500m"},
		{"vllm", "{gpus: 8, cpu: 96}", "96"}, {"ember", "{}", "0"}, {"ember", "{cpu: 0.25}", "250m"}, {"command", "{gpus: 1}", "0"},
	} {
		args := ""
		if x.engine == "command" {
			args = "args: ['{port}'], "
		}
		s, err := Render(models(t, "a",
			"apiVersion: thaw.dev/v1\nkind: Model\nmetadata: {name: a}\nspec: {source: 'hf://a/b', "+args+"engine: "+x.engine+
				", resources: "+x.resources+"}\n")[0],
			Settings{Thaw: thawImage, Images: map[functions.Engine]string{functions.EngineCommand: "own", functions.EngineLlamaCpp: "llama"}})
		if err != nil {
			t.Fatal(err)
		}
		r := s.Spec.Template.Spec.Containers[0].Resources
		if got := r.Requests.Cpu().String(); got != x.want {
			t.Errorf("%s with %s asks for %s, want %s", x.engine, x.resources, got, x.want)
		}
		if _, bound := r.Limits[corev1.ResourceCPU]; bound {
			t.Errorf("%s with %s has a bound", x.engine, x.resources)
		}
	}
}

// TestLocked: containers of models have no privileges.
func TestLocked(t *testing.T) {
	for _, e := range functions.Engines {
		m := functions.NewModel()
		m.Metadata.Name, m.Spec.Engine, m.Spec.Source, m.Spec.Args = "a", e, "hf://a/b", []string{"x"}
		s, err := Render(m, Settings{Thaw: thawImage, Images: map[functions.Engine]string{functions.EngineCommand: "example.com/own:1", functions.EngineLlamaCpp: "example.com/llama:1"}})
		if err != nil {
			t.Fatal(err)
		}
		pod := s.Spec.Template.Spec.PodSpec
		if (len(pod.InitContainers) == 0) != (e == functions.EngineEmber) {
			t.Errorf("%s: %d containers bring the shim", e, len(pod.InitContainers))
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			x := c.SecurityContext
			if x == nil || !*x.RunAsNonRoot || *x.RunAsUser == 0 || !*x.ReadOnlyRootFilesystem || *x.AllowPrivilegeEscalation ||
				x.Privileged != nil ||
				!slices.Equal(x.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(x.Capabilities.Add) > 0 || x.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s, %s: %+v", e, c.Name, x)
			}
			for _, v := range c.VolumeMounts {
				if v.Name == "store" && !v.ReadOnly {
					t.Errorf("%s, %s may write to the node's store", e, c.Name)
				}
			}
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("%s: the engine gets a token of Kubernetes", e)
		}
	}
}

// TestAnnotationNames compares our annotation names with Knative's constants.
func TestAnnotationNames(t *testing.T) {
	for ours, theirs := range map[string]string{
		ClassAnnotation: autoscaling.ClassAnnotationKey, minAnnotation: autoscaling.MinScaleAnnotationKey, maxAnnotation: autoscaling.MaxScaleAnnotationKey,
		targetAnnotation: autoscaling.TargetAnnotationKey, initialAnnotation: autoscaling.InitialScaleAnnotationKey,
	} {
		if ours != theirs {
			t.Errorf("%s, Knative says %s", ours, theirs)
		}
	}
}

// TestIsImage: names of images as registries take them.
func TestIsImage(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	for name, want := range map[string]bool{
		"thaw": true, "thaw-dev/thaw:dev": true, "example.com/thaw": true, "registry.example.com:5000/ml/thaw:v1.2": true, "localhost:5000/x": true,
		"localhost/x": true, "ghcr.io/Org/x:1": false, "x" + digest: true, "a/b:1" + digest: true, "my_team/a__b.c-d:V1": true, "[::1]:5000/x": true,
		"REGISTRY.example.com/x:1": true, "000000000000.dkr.ecr.eu-central-1.amazonaws.com/x:1": true,
		"": false, "R/x:1": false, "my image": false, "x:": false, "x:a b": false, "https://example.com/x": false, "x@sha256:12": false, "/x": false, "x/": false,
	} {
		if IsImage(name) != want {
			t.Errorf("%q: want %v", name, want)
		}
	}
}
