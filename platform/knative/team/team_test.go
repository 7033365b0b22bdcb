package team

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	status "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
)

func quotaOf(name, key, value string) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceName(key): resource.MustParse(value)}}}
}

func TestFromNamespace(t *testing.T) {
	all := map[string]string{
		"thaw.dev/gpus-guaranteed": "1", "thaw.dev/concurrent": "2", "thaw.dev/held-requests": "3", "thaw.dev/requests-per-minute": "4",
		"thaw.dev/tokens-per-minute": "5", "thaw.dev/cold-starts-per-hour": "6", "thaw.dev/gpu-seconds-per-day": "7", "thaw.dev/store-bytes": "2Gi", "thaw.dev/priority-max": "normal", "other.dev/x": "y",
	}
	full := functions.TeamSpec{GPUs: functions.TeamGPUs{Guaranteed: 1, Max: 4}, Limits: functions.Limits{
		Concurrent: 2, HeldRequests: 3, RequestsPerMinute: 4, TokensPerMinute: 5, ColdStartsPerHour: 6, GPUSecondsPerDay: 7, StoreBytes: 2 << 30},
		Priority: functions.TeamPriority{Max: functions.PriorityNormal}}
	scoped := quotaOf("scoped", "requests.nvidia.com/gpu", "1")
	scoped.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}
	for _, x := range []struct {
		name        string
		annotations map[string]string
		quotas      []*corev1.ResourceQuota
		want        functions.TeamSpec
		problems    []string // parts of the reported sentences
	}{
		{name: "nothing"},
		{name: "everything", annotations: all, quotas: []*corev1.ResourceQuota{quotaOf("a", "requests.nvidia.com/gpu", "4")}, want: full},
		{name: "the least of several", quotas: []*corev1.ResourceQuota{quotaOf("a", "requests.nvidia.com/gpu", "4"), quotaOf("b", "limits.nvidia.com/gpu", "2"), quotaOf("c", "requests.cpu", "1")}, want: functions.TeamSpec{GPUs: functions.TeamGPUs{Max: 2}}},
		{name: "of some pods only", quotas: []*corev1.ResourceQuota{scoped}},
		{name: "no GPU at all", quotas: []*corev1.ResourceQuota{quotaOf("none", "requests.nvidia.com/gpu", "0")}, problems: []string{"ResourceQuota none allows no GPU"}},
		{name: "no numbers", annotations: map[string]string{"thaw.dev/concurrent": "many", "thaw.dev/requests-per-minute": "-1", "thaw.dev/store-bytes": "big", "thaw.dev/tokens-per-minute": "1e3", "thaw.dev/held-requests": "99999999999999999999", "thaw.dev/gpu-seconds-per-day": ""},
			problems: []string{"concurrent: \"many\" is not a number", "held-requests", "requests-per-minute", "tokens-per-minute", "gpu-seconds-per-day", "store-bytes"}},
		{name: "no priority", annotations: map[string]string{"thaw.dev/priority-max": "lowest"}, problems: []string{`priority-max: "lowest" is not high, normal or low`}},
		{name: "a slip", annotations: map[string]string{"thaw.dev/request-per-minute": "4"}, problems: []string{"did you mean thaw.dev/requests-per-minute?"}},
		{name: "more than there may be", annotations: map[string]string{"thaw.dev/gpus-guaranteed": "3"}, quotas: []*corev1.ResourceQuota{quotaOf("a", "requests.nvidia.com/gpu", "2")},
			want: functions.TeamSpec{GPUs: functions.TeamGPUs{Guaranteed: 2, Max: 2}}, problems: []string{"3 GPUs are more than the 2"}},
	} {
		got, problems := FromNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ml", Annotations: x.annotations}}, x.quotas)
		if got.Metadata.Name != "ml" || got.Kind != functions.KindTeam || !reflect.DeepEqual(got.Spec, x.want) {
			t.Errorf("%s: %+v", x.name, got)
		}
		if len(problems) != len(x.problems) {
			t.Errorf("%s: problems %q", x.name, problems)
			continue
		}
		for _, want := range x.problems {
			if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, want) }) {
				t.Errorf("%s: %q says not %q", x.name, problems, want)
			}
		}
	}
}

// TestRenderRoundTrip: every field of a team file can be rendered into a namespace and is read back
// equal, but for those that TestRender finds refused.
func TestRenderRoundTrip(t *testing.T) {
	var team functions.Team
	team.Metadata.Name = "ml"
	v := reflect.ValueOf(&team.Spec).Elem()
	n := int64(1)
	var fill func(reflect.Value)
	fill = func(v reflect.Value) {
		for i := range v.NumField() {
			f := v.Field(i)
			switch name := v.Type().Field(i).Name; {
			case name == "Data" || name == "SpendPerDay":
			case f.Kind() == reflect.Struct:
				fill(f)
			case f.Type() == reflect.TypeFor[functions.Priority]():
				f.SetString("low")
			default:
				f.SetInt(n)
				n++
			}
		}
	}
	fill(v)
	objects, err := Render(&team, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	got, problems := FromNamespace(objects[0].(*corev1.Namespace), []*corev1.ResourceQuota{objects[1].(*corev1.ResourceQuota)})
	if len(problems) > 0 || !reflect.DeepEqual(got.Spec, team.Spec) {
		t.Errorf("%+v came back as %+v %q", team.Spec, got.Spec, problems)
	}
}

func TestRender(t *testing.T) {
	full := functions.Team{Metadata: functions.Metadata{Name: "ml"},
		Spec: functions.TeamSpec{GPUs: functions.TeamGPUs{Guaranteed: 1, Max: 4},
			Limits: functions.Limits{RequestsPerMinute: 60, StoreBytes: 200 << 30}}}
	for _, bad := range []functions.Team{
		{}, {Metadata: functions.Metadata{Name: "A_"}}, {Metadata: functions.Metadata{Name: "kube-system"}}, {Metadata: functions.Metadata{Name: "knative-serving"}}, {Metadata: functions.Metadata{Name: "thaw-system"}},
		{Metadata: functions.Metadata{Name: "a"}, Spec: functions.TeamSpec{GPUs: functions.TeamGPUs{Guaranteed: 2, Max: 1}}},
		{Metadata: functions.Metadata{Name: "a"}, Spec: functions.TeamSpec{GPUs: functions.TeamGPUs{Max: -1}}},
		{Metadata: functions.Metadata{Name: "a"}, Spec: functions.TeamSpec{Limits: functions.Limits{Concurrent: -1}}},
		{Metadata: functions.Metadata{Name: "a"}, Spec: functions.TeamSpec{Limits: functions.Limits{SpendPerDay: 1}}},
		{Metadata: functions.Metadata{Name: "a"}, Spec: functions.TeamSpec{Data: functions.DataSecret}},
	} {
		if objects, err := Render(&bad, Settings{}); err == nil {
			t.Errorf("%+v is rendered: %v", bad, objects)
		}
	}
	if _, err := Render(&full, Settings{Groups: []string{""}}); err == nil {
		t.Error("a group without a name is bound")
	}
}

func TestRead(t *testing.T) {
	for _, x := range []struct{ key, value, problem string }{
		{"concurrent", "3", ""}, {"store-bytes", "1Ti", ""}, {"priority-max", "low", ""}, {"priority-max", "Low", "not high, normal or low"}, {"concurrent", "-3", "not a number"}, {"concurent", "3", "did you mean concurrent?"}, {"wages", "1", "is not a limit"}, {"store-bytes", "x", "store-bytes: "},
	} {
		var team functions.Team
		err := SetLimit(&team, x.key, x.value)
		if (err == nil) != (x.problem == "") || err != nil && !strings.Contains(err.Error(), x.problem) {
			t.Errorf("%s=%s: %v", x.key, x.value, err)
		}
		if err == nil && team.Spec == (functions.TeamSpec{}) {
			t.Errorf("%s=%s sets nothing", x.key, x.value)
		}
	}
}

func keySecret(namespace string, entries map[string]string) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: SecretName, Namespace: namespace}, Data: map[string][]byte{}}
	for id, e := range entries {
		s.Data[id] = []byte(e)
	}
	return s
}

func TestKeys(t *testing.T) {
	hash := func(c string) string { return strings.Repeat(c, 64) }
	other := keySecret("a", map[string]string{"x": `{"hash": "` + hash("9") + `"}`})
	other.Name = "mine"
	keys, problems := Keys([]*corev1.Secret{
		keySecret("a", map[string]string{"k1": `{"name": "n", "hash": "` + hash("A") + `"}`, "k2": `{`, "k3": `{"hash": "ab"}`, "k4": `{"hash": "` + hash("g") + `"}`}),
		keySecret("b", map[string]string{"k5": `{"hash": "` + hash("a") + `"}`, "k6": `{"hash": "` + hash("b") + `", "team": "a", "admin": true}`}),
		other,
	})
	want := []auth.StoredKey{{Key: auth.Key{ID: "k1", Name: "n", Team: "a"}, Hash: hash("a")}, {Key: auth.Key{ID: "k6", Team: "b"}, Hash: hash("b")}}
	if !slices.Equal(keys.Keys, want) {
		t.Error(keys.Keys)
	}
	if len(problems) != 4 || !strings.Contains(problems[3], "b/thaw-keys: key k5 is also one of a") {
		t.Errorf("%q", problems)
	}
}

// TestLife covers the life of a key on a fake API server.
func TestLife(t *testing.T) {
	c := fake.NewClientset()
	core := c.CoreV1()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := Delete(t.Context(), core, "a", "x"); !errors.Is(err, ErrNoKey) {
		t.Errorf("no Secret: %v", err)
	}
	s1, k1, err := Create(t.Context(), core, "a", "laptop", now)
	if err != nil {
		t.Fatal(err)
	}
	s2, k2, err := Create(t.Context(), core, "a", "", now.Add(time.Second))
	if err != nil || s1 == s2 || k1.ID == k2.ID {
		t.Fatal(s1, s2, err)
	}
	if _, _, err := Create(t.Context(), core, "b", "", now); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Create(t.Context(), core, "a", "a\nb", now); err == nil {
		t.Error("a name of two lines is taken")
	}
	if !strings.HasPrefix(s1, auth.Prefix) || len(s1) != len(auth.Prefix)+43 {
		t.Errorf("a key is %q", s1)
	}
	// The Secret has only the hash.
	have, _ := core.Secrets("a").Get(t.Context(), SecretName, metav1.GetOptions{})
	raw, _ := json.Marshal(have)
	for _, entry := range have.Data {
		raw = append(raw, entry...)
	}
	sum := sha256.Sum256([]byte(s1))
	if strings.Contains(string(raw), s1) || !strings.Contains(string(raw), hex.EncodeToString(sum[:])) {
		t.Errorf("at rest: %s", raw)
	}
	// An activator's key store accepts the key.
	keys, problems := Keys([]*corev1.Secret{have})
	if len(keys.Keys) != 2 || len(problems) > 0 {
		t.Fatal(keys, problems)
	}
	book := auth.NewReplicatedKeyStore()
	if err := book.Set(keys.Keys); err != nil {
		t.Fatal(err)
	}
	if id, ok := book.Lookup(s1); !ok || id.Team != "a" || id.KeyID != k1.ID || id.Admin {
		t.Errorf("%+v %v", id, ok)
	}
	list, problems, err := List(t.Context(), core, "a")
	if err != nil || len(problems) > 0 || len(list) != 2 || list[0].ID != k1.ID || list[0].Name != "laptop" ||
		list[0].Created != "2026-01-02T03:04:05Z" || list[1].ID != k2.ID {
		t.Errorf("%+v %v %v", list, problems, err)
	}
	if all, _, err := List(t.Context(), core, ""); err != nil || len(all) != 3 {
		t.Errorf("%+v %v", all, err)
	}
	if err := Delete(t.Context(), core, "b", k1.ID); !errors.Is(err, ErrNoKey) {
		t.Errorf("another team's: %v", err)
	}
	if err := Delete(t.Context(), core, "a", k1.ID); err != nil {
		t.Error(err)
	}
	if list, _, _ := List(t.Context(), core, "a"); len(list) != 1 || list[0].ID != k2.ID {
		t.Errorf("%+v", list)
	}
}

// TestRace: two concurrent first creations both keep their keys.
func TestRace(t *testing.T) {
	c := fake.NewClientset()
	first := true
	c.PrependReactor("create", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		if !first {
			return false, nil, nil
		}
		first = false
		if err := c.Tracker().Add(keySecret("a", map[string]string{"theirs": `{"hash": "` + strings.Repeat("a", 64) + `"}`})); err != nil {
			t.Error(err)
		}
		return true, nil, status.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, SecretName)
	})
	if _, _, err := Create(context.Background(), c.CoreV1(), "a", "", time.Now()); err != nil {
		t.Fatal(err)
	}
	if list, _, err := List(t.Context(), c.CoreV1(), "a"); err != nil || len(list) != 2 {
		t.Errorf("%+v %v", list, err)
	}
	// A refusal of the API server is returned.
	c = fake.NewClientset()
	c.PrependReactor("patch", "secrets", func(k8stesting.Action) (bool, runtime.Object, error) {
		return true, nil, status.NewForbidden(schema.GroupResource{Resource: "secrets"}, SecretName, errors.New("no"))
	})
	if s, _, err := Create(t.Context(), c.CoreV1(), "a", "", time.Now()); !status.IsForbidden(err) || s != "" {
		t.Errorf("%q %v", s, err)
	}
}

// FuzzKeys: for any content of a Secret, only valid hashes are returned.
func FuzzKeys(f *testing.F) {
	f.Add("id", []byte(`{"hash": "`+strings.Repeat("a", 64)+`"}`))
	f.Add("", []byte(`{"hash": 1}`))
	f.Add("x", []byte("null"))
	f.Fuzz(func(t *testing.T, id string, entry []byte) {
		keys, problems := Keys([]*corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: SecretName, Namespace: "a"}, Data: map[string][]byte{id: entry}}})
		if len(keys.Keys)+len(problems) != 1 {
			t.Errorf("%v %v", keys, problems)
		}
		for _, k := range keys.Keys {
			if h, err := hex.DecodeString(k.Hash); err != nil || len(h) != 32 || k.Team != "a" || k.Admin {
				t.Errorf("%+v", k)
			}
		}
	})
}

// TestManyKeys: a Secret with more keys than the bound keeps the first, and its problems
// are counted.
func TestManyKeys(t *testing.T) {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: SecretName, Namespace: "a"}, Data: map[string][]byte{}}
	for i := range 2 * maxKeys {
		s.Data[fmt.Sprintf("k%04d", i)] = fmt.Appendf(nil, `{"hash": "%064x"}`, i)
	}
	s.Data["a-long-one"] = []byte(`{"name": "` + strings.Repeat("x", maxEntry) + `"}`)
	keys, problems := Keys([]*corev1.Secret{s})
	if len(keys.Keys) != maxKeys || keys.Keys[0].ID != "k0000" || len(problems) != 2 || !strings.Contains(problems[0], "1001 entries") ||
		!strings.Contains(problems[1], "a-long-one") {
		t.Errorf("%d keys, %q", len(keys.Keys), problems)
	}
	for id := range s.Data {
		s.Data[id] = []byte("x")
	}
	if keys, problems := Keys([]*corev1.Secret{s}); len(keys.Keys) != 0 || len(problems) != maxProblems+1 || !strings.Contains(problems[maxProblems], "981 more problems") {
		t.Errorf("%d keys, %d problems, %q", len(keys.Keys), len(problems), problems[len(problems)-1])
	}
}

// FuzzFromNamespace: any annotation of a namespace is read or is a problem, and no limit is
// negative.
func FuzzFromNamespace(f *testing.F) {
	f.Add("requests-per-minute", "600", "8")
	f.Add("store-bytes", "200Gi", "-1")
	f.Add("store-bytes", "99999999999999999999999Ei", "9223372036854775807")
	f.Add("gpus-guaranted", "1", "1e18")
	f.Fuzz(func(t *testing.T, key, value, gpus string) {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{Prefix + key: value}}}
		var quotas []*corev1.ResourceQuota
		if q, err := resource.ParseQuantity(gpus); err == nil {
			quotas = []*corev1.ResourceQuota{{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.nvidia.com/gpu": q}}}}
		}
		x, problems := FromNamespace(ns, quotas)
		for _, l := range Limits {
			if l.get(&x.Spec) < 0 {
				t.Errorf("%s: %d", l.Key, l.get(&x.Spec))
			}
		}
		if x.Spec.GPUs.Max < 0 || len(problems) > maxProblems+3 {
			t.Errorf("%+v %q", x.Spec, problems)
		}
	})
}

// TestRenderServices: a team without GPUs has a quota of Knative Services, where one is set.
func TestRenderServices(t *testing.T) {
	team := functions.Team{Metadata: functions.Metadata{Name: "ml"}}
	for n, want := range map[int]string{0: "", 7: "7"} {
		objects, err := Render(&team, Settings{Services: n})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, o := range objects {
			if q, ok := o.(*corev1.ResourceQuota); ok {
				v := q.Spec.Hard[ServicesQuota]
				got = v.String()
			}
		}
		if got != want {
			t.Errorf("--services %d: the quota is %q", n, got)
		}
	}
}
