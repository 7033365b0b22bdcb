package team

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/controlstream"
)

// Prefix of thaw's annotations on a namespace.
const Prefix = "thaw.dev/"

const maxLimit = 1 << 50

// Limit is one annotation of a namespace.
type Limit struct {
	Key  string // without Prefix
	What string
	set  func(*functions.TeamSpec, int64)
	get  func(*functions.TeamSpec) int64
}

func newLimit[N ~int | ~int64](key, what string, of func(*functions.TeamSpec) *N) Limit {
	return Limit{key, what,
		func(t *functions.TeamSpec, n int64) { *of(t) = N(n) },
		func(t *functions.TeamSpec) int64 { return int64(*of(t)) }}
}

// Limits lists the annotations of a namespace in the order of the team file.
var Limits = []Limit{
	newLimit("gpus-guaranteed", "guaranteed GPUs", func(t *functions.TeamSpec) *int { return &t.GPUs.Guaranteed }),
	newLimit("concurrent", "requests at once", func(t *functions.TeamSpec) *int { return &t.Limits.Concurrent }),
	newLimit("held-requests", "requests that wait at once", func(t *functions.TeamSpec) *int { return &t.Limits.HeldRequests }),
	newLimit("requests-per-minute", "requests a minute", func(t *functions.TeamSpec) *int { return &t.Limits.RequestsPerMinute }),
	newLimit("tokens-per-minute", "tokens a minute", func(t *functions.TeamSpec) *int { return &t.Limits.TokensPerMinute }),
	newLimit("cold-starts-per-hour", "cold starts an hour", func(t *functions.TeamSpec) *int { return &t.Limits.ColdStartsPerHour }),
	newLimit("gpu-seconds-per-day", "GPU seconds a day", func(t *functions.TeamSpec) *int { return &t.Limits.GPUSecondsPerDay }),
	newLimit(storeBytes, "bytes of the stores, such as 200Gi", func(t *functions.TeamSpec) *functions.Bytes { return &t.Limits.StoreBytes }),
	{maxPriority, "highest priority of its requests: high, normal or low", // the number is a place in functions.Priorities, from 1
		func(t *functions.TeamSpec, n int64) { t.Priority.Max = functions.Priorities[n-1] },
		func(t *functions.TeamSpec) int64 {
			return int64(slices.Index(functions.Priorities, t.Priority.Max) + 1)
		}},
}

const (
	storeBytes  = "store-bytes"
	maxPriority = "priority-max"
)

// IsTeam reports whether a namespace can be a team: not the cluster's own nor thaw's.
func IsTeam(namespace string) bool {
	return !strings.HasPrefix(namespace, "kube-") && !strings.HasPrefix(namespace, "knative-") && namespace != "thaw-system"
}

// FromNamespace returns a namespace as a team, and a sentence for each setting that could
// not be read, which counts as unset.
func FromNamespace(ns *corev1.Namespace, quotas []*corev1.ResourceQuota) (t functions.Team, problems []string) {
	t = functions.Team{APIVersion: functions.APIVersion, Kind: functions.KindTeam, Metadata: functions.Metadata{Name: ns.Name}}
	defer func() {
		if p := recover(); p != nil {
			problems = append(problems, "the namespace cannot be read: "+functions.Clip(fmt.Sprint(p)))
		}
	}()
	var known []string
	for _, l := range Limits {
		known = append(known, Prefix+l.Key)
		s, set := ns.Annotations[Prefix+l.Key]
		if !set {
			continue
		}
		n, err := l.read(s)
		if err != nil {
			problems = append(problems, fmt.Sprintf("annotation %s%s: %v", Prefix, l.Key, err))
			continue
		}
		l.set(&t.Spec, n)
	}
	for _, key := range slices.Sorted(maps.Keys(ns.Annotations)) {
		if len(problems) >= maxProblems {
			break
		}
		if strings.HasPrefix(key, Prefix) && key != PodAnnotation && !slices.Contains(known, key) {
			problem := fmt.Sprintf("annotation %.80q is unknown", key)
			if near := functions.Nearest(key, known, 1); len(near) > 0 {
				problem += "; did you mean " + near[0] + "?"
			}
			problems = append(problems, problem)
		}
	}
	for _, q := range slices.SortedFunc(slices.Values(quotas), func(a, b *corev1.ResourceQuota) int { return cmp.Compare(a.Name, b.Name) }) {
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue // of some pods only: Kubernetes explains a refusal itself
		}
		for _, name := range []corev1.ResourceName{"requests.nvidia.com/gpu", "limits.nvidia.com/gpu"} {
			n, set := q.Spec.Hard[name]
			if !set {
				continue
			}
			if n.Sign() <= 0 {
				problems = append(problems,
					fmt.Sprintf("ResourceQuota %s allows no GPU: thaw takes 0 for no limit, and Kubernetes refuses the pods", q.Name))
				continue
			}
			if v := int(Bounded(&n, maxLimit)); t.Spec.GPUs.Max == 0 || v < t.Spec.GPUs.Max {
				t.Spec.GPUs.Max = v
			}
		}
	}
	if g := t.Spec.GPUs; g.Max > 0 && g.Guaranteed > g.Max {
		problems = append(problems,
			fmt.Sprintf("annotation %sgpus-guaranteed: %d GPUs are more than the %d that a ResourceQuota allows", Prefix, g.Guaranteed, g.Max))
		t.Spec.GPUs.Guaranteed = g.Max
	}
	return t, problems
}

// read parses the annotation's value.
func (l Limit) read(s string) (int64, error) {
	if l.Key == maxPriority {
		if n := slices.Index(functions.Priorities, functions.Priority(s)); n >= 0 {
			return int64(n) + 1, nil
		}
		return 0, fmt.Errorf("%.40q is not high, normal or low", s)
	}
	if l.Key == storeBytes {
		var b functions.Bytes
		if err := b.UnmarshalText([]byte(s)); err != nil {
			return 0, err
		}
		return int64(b), nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > maxLimit {
		return 0, fmt.Errorf("%.40q is not a number (0 means no limit)", s)
	}
	return n, nil
}

// Annotations returns the annotations of a team's namespace.
func Annotations(t *functions.Team) map[string]string {
	out := map[string]string{}
	for _, l := range Limits {
		if n := l.get(&t.Spec); n != 0 {
			out[Prefix+l.Key] = strconv.FormatInt(n, 10)
		}
		if l.Key == maxPriority && t.Spec.Priority.Max != "" {
			out[Prefix+l.Key] = string(t.Spec.Priority.Max)
		}
	}
	return out
}

// Keys decodes the API keys in Secrets, and lists what could not be read. A key belongs to
// the namespace of its Secret.
func Keys(secrets []*corev1.Secret) (controlstream.Keys, []string) {
	var keys controlstream.Keys
	var problems []string
	of := map[string]string{}
	for _, s := range secrets {
		if s.Name != SecretName {
			continue
		}
		found, bad := readEntries(s)
		problems = append(problems, bad...)
		for _, k := range found {
			if first, twice := of[k.hash]; twice {
				problems = append(problems, fmt.Sprintf("Secret %s/%s: key %s is also one of %s, which keeps it", s.Namespace, s.Name, k.ID, first))
				continue
			}
			of[k.hash] = s.Namespace
			keys.Keys = append(keys.Keys, auth.StoredKey{Key: auth.Key{ID: k.ID, Name: k.Name, Team: s.Namespace}, Hash: k.hash})
		}
	}
	return keys, problems
}

// Bounds of a Secret with keys. A team may write it, and every activator gets its keys.
const (
	maxKeys     = 500
	maxEntry    = 2 << 10 // bytes of a key
	maxProblems = 20      // listed; the rest is counted
)

// readEntries decodes the keys of one Secret; none of them if that panics.
func readEntries(s *corev1.Secret) (keys []Key, problems []string) {
	defer func() {
		if p := recover(); p != nil {
			keys, problems = nil, []string{fmt.Sprintf("Secret %s/%s cannot be read: %s", s.Namespace, s.Name, functions.Clip(fmt.Sprint(p)))}
		}
		if n := len(problems) - maxProblems; n > 0 {
			problems = append(problems[:maxProblems], fmt.Sprintf("Secret %s/%s: %d more problems", s.Namespace, s.Name, n))
		}
	}()
	for _, id := range slices.Sorted(maps.Keys(s.Data)) {
		if len(keys) == maxKeys {
			problems = append([]string{fmt.Sprintf("Secret %s/%s: it has %d entries, and only the first %d keys count", s.Namespace, s.Name, len(s.Data), maxKeys)}, problems...)
			break
		}
		var e Entry
		if len(s.Data[id]) > maxEntry {
			problems = append(problems, fmt.Sprintf("Secret %s/%s: key %s has more than %d bytes", s.Namespace, s.Name, id, maxEntry))
			continue
		}
		if err := json.Unmarshal(s.Data[id], &e); err != nil {
			problems = append(problems, fmt.Sprintf("Secret %s/%s: key %s cannot be decoded", s.Namespace, s.Name, id))
			continue
		}
		hash := strings.ToLower(e.Hash)
		if h, err := hex.DecodeString(hash); err != nil || len(h) != 32 {
			problems = append(problems, fmt.Sprintf("Secret %s/%s: the hash of key %s is not a SHA-256 hash", s.Namespace, s.Name, id))
			continue
		}
		keys = append(keys, Key{ID: id, Name: e.Name, Team: s.Namespace, Created: e.Created, hash: hash})
	}
	return keys, problems
}

// Bounded returns a quantity's value, at least 0 and at most most. Value alone wraps around
// for a quantity that is no int64.
func Bounded(q *resource.Quantity, most int64) int64 {
	if q.Cmp(*resource.NewQuantity(most, resource.DecimalSI)) > 0 {
		return most
	}
	return max(q.Value(), 0)
}
