// Package team reads namespaces as teams: their GPUs from ResourceQuotas, their
// limits from annotations, their API keys from one Secret each.
package team

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/link"
)

// SecretName is the Secret in a team's namespace that holds its API keys: one entry
// each, named by the key's id, with an Entry as JSON.
const SecretName = "thaw-keys"

// Entry is one API key in its Secret.
type Entry struct {
	Name    string `json:"name,omitempty"`
	Hash    string `json:"hash"` // hex of the SHA-256 of the secret
	Created string `json:"created,omitempty"`
}

// prefix of the annotations on a namespace.
const prefix = "thaw.dev/"

// Of is a namespace as a team, and what of it does not read, a sentence each. A
// limit that does not read is none, and told.
func Of(ns *corev1.Namespace, quotas []*corev1.ResourceQuota) (functions.Team, []string) {
	t := functions.Team{APIVersion: functions.APIVersion, Kind: functions.KindTeam, Metadata: functions.Metadata{Name: ns.Name}}
	var problems []string
	number := func(key string, into *int) {
		s, set := ns.Annotations[prefix+key]
		if !set {
			return
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			problems = append(problems, fmt.Sprintf("annotation %s%s: %q is no number from 0", prefix, key, s))
			return
		}
		*into = n
	}
	l := &t.Spec.Limits
	number("concurrent", &l.Concurrent)
	number("held-requests", &l.HeldRequests)
	number("requests-per-minute", &l.RequestsPerMinute)
	number("tokens-per-minute", &l.TokensPerMinute)
	number("cold-starts-per-hour", &l.ColdStartsPerHour)
	number("gpu-seconds-per-day", &l.GPUSecondsPerDay)
	number("gpus-guaranteed", &t.Spec.GPUs.Guaranteed)
	if s, set := ns.Annotations[prefix+"store-bytes"]; set {
		if err := l.StoreBytes.UnmarshalText([]byte(s)); err != nil {
			problems = append(problems, fmt.Sprintf("annotation %sstore-bytes: %v", prefix, err))
		}
	}
	for _, q := range quotas {
		for _, name := range []corev1.ResourceName{"requests.nvidia.com/gpu", "limits.nvidia.com/gpu"} {
			if n, set := q.Spec.Hard[name]; set && (t.Spec.GPUs.Max == 0 || int(n.Value()) < t.Spec.GPUs.Max) {
				t.Spec.GPUs.Max = int(n.Value())
				if n.IsZero() {
					problems = append(problems, fmt.Sprintf("ResourceQuota %s allows no GPU; thaw takes 0 for no limit, Kubernetes will refuse the pods", q.Name))
				}
			}
		}
	}
	return t, problems
}

// Keys are the API keys that Secrets hold, and what of them does not read.
func Keys(secrets []*corev1.Secret) (link.Keys, []string) {
	var keys link.Keys
	var problems []string
	for _, s := range secrets {
		if s.Name != SecretName {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(s.Data)) {
			var e Entry
			if err := json.Unmarshal(s.Data[id], &e); err != nil {
				problems = append(problems, fmt.Sprintf("Secret %s/%s: key %s does not read", s.Namespace, s.Name, id))
				continue
			}
			keys.Keys = append(keys.Keys, link.Key{ID: id, Name: e.Name, Team: s.Namespace, Hash: e.Hash})
		}
	}
	return keys, problems
}
